"""What a run would do, before it does it: the cells and, from earlier runs on this machine, the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftboard.measure.arms import K_OPTION, bound_options
from draftboard.measure.plan import Plan
from draftboard.record.store import Store, load
from draftboard.record.tasks import load_task


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on one task."""

    task: str
    arm: str
    prompts: int
    replies: int
    tokens_at_most: int
    seconds: float | None
    """Estimate from the newest run of the same target, task and drafter; None when there is none."""


def cells(plans: Sequence[Plan], store: Store) -> list[Cell]:
    """All cells of some plans, in the order they are listed; inside a run they are interleaved."""
    known = _known_paces(store)
    return [_cell(plan, index, known) for plan in plans for index in range(len(plan.arms))]


def _cell(plan: Plan, index: int, known: dict[tuple[str, str, str], float]) -> Cell:
    spec, task = plan.arms[index], load_task(plan.task, Path(plan.root))
    prompts = task.sample(plan.limit, plan.sampling.seed)
    replies = sum(len(prompt.turns) for prompt in prompts) * plan.repeats
    _, options = bound_options(spec, plan.plugins)
    k = options.get(K_OPTION)
    pace = known.get((plan.target, task.name, spec.drafter))
    return Cell(
        task=task.name,
        arm=spec.drafter if k is None else f"{spec.drafter} K={k}",
        prompts=len(prompts),
        replies=replies,
        tokens_at_most=replies * plan.max_new_tokens,
        seconds=None if pace is None else pace * replies * plan.max_new_tokens,
    )


def _known_paces(store: Store) -> dict[tuple[str, str, str], float]:
    """Wall seconds a token by target, task and drafter, from the newest run that has them."""
    paces: dict[tuple[str, str, str], float] = {}
    for stored in store.runs():
        run, arms = load(stored.path)
        for arm in arms:
            tokens = sum(len(trace.token_ids) for trace in arm.traces)
            if tokens:
                wall = sum(trace.wall_ms for trace in arm.traces) / 1e3
                paces[run.target.id, run.task.name, arm.drafter] = wall / tokens
    return paces
