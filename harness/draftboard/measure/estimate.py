"""What a run would do, before it does it: the cells and, from earlier runs on this machine, the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from draftboard.measure import loading
from draftboard.measure.arms import K_OPTION, bound_options
from draftboard.measure.machine import environment
from draftboard.measure.plan import Plan
from draftboard.record.environment import fingerprint
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
    """Estimate from the newest run of the same machine, dtype, target, task and drafter, one with the same K
    before others; None when there is none."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Wall seconds a token of one arm of an earlier run."""

    about: tuple[str, str, str, str]
    """Fingerprint, target, task, drafter."""
    k: int | None
    seconds: float


def cells(plans: Sequence[Plan], store: Store) -> list[Cell]:
    """All cells of some plans, in the order they are listed; inside a run they are interleaved."""
    known, here = _known_paces(store), cache(_fingerprint)
    return [
        _cell(plan, index, known, here(plan.device, plan.dtype))
        for plan in plans
        for index in range(len(plan.arms))
    ]


def _cell(plan: Plan, index: int, known: Sequence[_Pace], here: str) -> Cell:
    spec, task = plan.arms[index], load_task(plan.task, Path(plan.root))
    prompts = task.sample(plan.limit, plan.sampling.seed)
    replies = sum(len(prompt.turns) for prompt in prompts) * plan.repeats
    _, options = bound_options(spec, plan.plugins)
    k = options.get(K_OPTION)
    drafter = spec.drafter.rpartition("/")[2]
    pace = _pace(known, (here, loading.target_id(plan.target), task.name, drafter), k)
    return Cell(
        task=task.name,
        arm=drafter if k is None else f"{drafter} K={k}",
        prompts=len(prompts),
        replies=replies,
        tokens_at_most=replies * plan.max_new_tokens,
        seconds=None if pace is None else pace * replies * plan.max_new_tokens + plan.telemetry_s,
    )


def _pace(known: Sequence[_Pace], about: tuple[str, str, str, str], k: int | None) -> float | None:
    """The newest pace that fits, one with this K before one with another."""
    found = [pace for pace in known if pace.about == about]
    chosen = [pace for pace in found if pace.k == k] or found
    return chosen[-1].seconds if chosen else None


def _fingerprint(device_name: str, dtype: str) -> str:
    """The fingerprint that a run of this device and dtype would have here."""
    device = loading.resolve_device(device_name)
    return fingerprint(environment(device), loading.dtype_name(loading.resolve_dtype(dtype, device)))


def _known_paces(store: Store) -> list[_Pace]:
    """The paces of all arms of all runs that gave a reply, oldest first."""
    paces = []
    for stored in store.runs():
        run, arms = load(stored.path)
        for arm in arms:
            tokens = sum(len(trace.token_ids) for trace in arm.traces)
            if tokens:
                about = (run.fingerprint, run.target.id, run.task.name, arm.drafter)
                wall_s = sum(trace.wall_ms for trace in arm.traces) / 1e3
                paces.append(_Pace(about, arm.k, wall_s / tokens))
    return paces
