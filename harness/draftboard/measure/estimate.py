"""What a run would do, before it does it: the cells and, from earlier runs on this machine, the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from draftboard.errors import UserError
from draftboard.measure import loading
from draftboard.measure.arms import K_OPTION, bound_options
from draftboard.measure.at_hand import at_hand
from draftboard.measure.machine import environment
from draftboard.measure.plan import Plan
from draftboard.measure.room import left_out_words, read_room
from draftboard.record.environment import fingerprint
from draftboard.record.store import Store, load
from draftboard.record.tasks import Prompt, load_task


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run would do and say: `cells` in the order they are listed (inside a run they are interleaved),
    `notes` on prompts that would be left out, `failures` of tasks that would not run."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    failures: tuple[str, ...]


def outlook(plans: Sequence[Plan], store: Store) -> Outlook:
    """What running some plans would do. Fetches nothing. Raises UserError where the run would: where its only
    task cannot run."""
    known, here = _known_paces(store), cache(_fingerprint)
    cells, notes, failures = list[Cell](), list[str](), list[str]()
    for plan in plans:
        try:
            prompts, note = _prompts(plan)
        except UserError as error:
            if len(plans) == 1:
                raise
            failures.append(f"{plan.task}: {error}")
            continue
        notes += [] if note is None else [f"{Path(plan.task).stem}: {note}"]
        pace_here = here(plan.device, plan.dtype)
        cells += [_cell(plan, index, prompts, known, pace_here) for index in range(len(plan.arms))]
    return Outlook(tuple(cells), tuple(notes), tuple(failures))


def _prompts(plan: Plan) -> tuple[Sequence[Prompt], str | None]:
    """The prompts that the run would take, and what it would say of others."""
    if plan.max_context is None:
        return load_task(plan.task, Path(plan.root)).sample(plan.limit, plan.sampling.seed), None
    source = at_hand(plan.target, plan.revision)
    if source is None:
        whole, _ = _prompts(replace(plan, max_context=None))
        return whole, f"what fits --max-context {plan.max_context} shows once {plan.target} is fetched"
    _, _, room = read_room(plan, source)
    return room.prompts, left_out_words(room, plan.max_context) if room.left_out else None


def _cell(plan: Plan, index: int, prompts: Sequence[Prompt], known: Sequence[_Pace], here: str) -> Cell:
    spec, task = plan.arms[index], load_task(plan.task, Path(plan.root))
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
