"""`results/accepted.toml`: which run of an arm is the fixed base of comparisons, and why; and floors.

Only `draftboard gate --accept` moves an entry, so a base never creeps along with what is measured by it.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from draftboard.errors import UserError, suggestion
from draftboard.record.codec import from_json, to_json
from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import Store, load, parse_utc

FILE = "accepted.toml"
HEAD = (
    "# The fixed bases of `draftboard gate`, moved by `draftboard gate --accept` only,"
    " and floors, moved by hand.\n"
    "# That command writes this file anew: reasons belong in `because`, comments are lost.\n"
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The run that one arm is measured by, on one machine."""

    target: str
    task: str
    arm: str
    """Drafter and K, such as `plain-k4`."""
    fingerprint: str
    arm_id: str
    run: str
    accepted_utc: str
    because: str
    options: str | None = None
    """The arm's options as JSON text, which tell it from others of its name in one run; None in entries of
    before they were kept."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least acceptance length that an arm may have on a task, on any machine."""

    target: str
    task: str
    arm: str
    acceptance_length: float
    because: str
    options: str | None = None
    """The only options of the arm that it holds for; None for all arms of the name without a floor of their
    own."""
    task_sha256: str | None = None
    """The only version of the task that it holds for; None for any."""
    max_new_tokens: int | None = None
    """The only reply limit that it holds for; None for any."""
    prompts: int | None = None
    """The only number of prompts that it holds for; None for any."""

    def is_of(self, run: RunRecord) -> bool:
        """Whether it tells of greedy decoding in such a run."""
        facts = (
            (self.task_sha256, run.task.sha256),
            (self.max_new_tokens, run.generation.max_new_tokens),
            (self.prompts, len(run.prompt_ids)),
        )
        fits = all(asked in (None, found) for asked, found in facts)
        return (
            fits
            and run.sampling.temperature == 0
            and (self.target, self.task) == (run.target.id, run.task.name)
        )

    def names(self, label: str, options: str) -> bool:
        """Whether it tells of an arm called `label` with `options`."""
        return self.arm == label and self.options in (None, options)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The file's content."""

    accepted: tuple[Accepted, ...] = ()
    floors: tuple[Floor, ...] = ()

    def floor_of(self, run: RunRecord, label: str, options: str) -> float | None:
        """The least acceptance length of an arm of `run`: of the floors for just its options, else of those
        for its name, the highest; None where no floor holds for it."""
        fitting = [floor for floor in self.floors if floor.is_of(run) and floor.names(label, options)]
        own = [floor for floor in fitting if floor.options is not None]
        return max((floor.acceptance_length for floor in own or fitting), default=None)


def label_of(arm: Arm) -> str:
    """An arm's drafter and K, as the command line takes them and the ledger names it."""
    return arm.drafter if arm.k is None else f"{arm.drafter}-k{arm.k}"


def options_text(arm: Arm) -> str:
    """An arm's options as they stand in the ledger."""
    return json.dumps(to_json(arm.options), sort_keys=True)


def read_ledger(results: Path) -> Ledger:
    """The ledger of a results folder, empty where there is no file. Raises UserError naming file and key."""
    path = results / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise UserError(f"{path}: not TOML ({error}); a merge conflict? restore the file") from None
    ledger: Ledger = from_json(Ledger, data, str(path))
    _check(ledger, path)
    return ledger


def _check(ledger: Ledger, path: Path) -> None:
    """Refuses what a hand or a merge may leave: two entries for a place, times and lengths that are none."""
    entries: list[Accepted | Floor] = [*ledger.accepted, *ledger.floors]
    places = Counter((type(one).__name__, *_order(one)) for one in entries)
    for (kind, *place), times in places.items():
        if times > 1:
            word = "floors" if kind == Floor.__name__ else "accepted runs"
            raise UserError(f"{path}: {times} {word} of {' '.join(filter(None, place))}; keep one of them")
    for base in ledger.accepted:
        parse_utc(base.accepted_utc, f"{path}, {base.task} {base.arm}")
    for floor in ledger.floors:
        if not 1 <= floor.acceptance_length < math.inf:
            raise UserError(
                f"{path}: the floor of {floor.task} {floor.arm} is {floor.acceptance_length}; an acceptance"
                " length is 1 or more"
            )


def doubts(ledger: Ledger, tasks: Collection[str]) -> Iterator[str]:
    """A line for each floor whose task is none of `tasks` and looks like one: a floor of a misspelt task
    guards nothing, one of a person's own task may be meant."""
    for floor in ledger.floors:
        if floor.task not in tasks and (meant := suggestion(floor.task, tasks)):
            yield f"{FILE}: the floor of {floor.arm} is of task {floor.task!r}{meant}"


@contextmanager
def moving(results: Path) -> Iterator[Ledger]:
    """The ledger, and nobody else's turn to move it until the block ends."""
    partial = results / ".partial"
    partial.mkdir(parents=True, exist_ok=True)
    with FileLock(partial / f"{FILE}.lock"):
        yield read_ledger(results)


def write_ledger(results: Path, ledger: Ledger) -> Path:
    """Writes the ledger, entries sorted, so that two branches that move different arms merge."""
    tables: list[tuple[str, Accepted | Floor]] = [
        ("accepted", one) for one in sorted(ledger.accepted, key=_order)
    ]
    tables += [("floors", one) for one in sorted(ledger.floors, key=_order)]
    text = HEAD + "".join(f"\n[[{name}]]\n{_lines(one)}" for name, one in tables)
    tomllib.loads(text)  # what could not be read again must not replace what can
    path = results / FILE
    temporary = path.with_suffix(".tmp")
    results.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def accepted_runs(results: Path, fingerprint: str) -> list[tuple[RunRecord, Sequence[Arm]]]:
    """The accepted runs of one machine, oldest first, each with its baseline and its accepted arms only.
    `arms` of a run names those that are compared: its accepted ones, and the baseline of the newest run of a
    task unless the baseline of another is accepted itself. The other baselines are yardsticks of their arms.
    Raises UserError for an entry whose run or arm is not there."""
    wanted: dict[str, list[Accepted]] = {}
    for one in read_ledger(results).accepted:
        if one.fingerprint == fingerprint:
            wanted.setdefault(one.run, []).append(one)
    loaded = [_load(Store(results), run, entries) for run, entries in wanted.items()]
    loaded.sort(key=lambda found: (parse_utc(found[0].created_utc, found[0].id), found[0].id))
    return [(_compared(run, arms, loaded, wanted), arms) for run, arms in loaded]


def _compared(
    run: RunRecord,
    arms: Sequence[Arm],
    loaded: Sequence[tuple[RunRecord, Sequence[Arm]]],
    wanted: Mapping[str, Sequence[Accepted]],
) -> RunRecord:
    """The run without its baseline among the compared arms where another run's is the one to compare."""
    beside = [one for one, _ in loaded if (one.target.id, one.task.name) == (run.target.id, run.task.name)]
    own = [one for one in beside if any(entry.arm_id == one.baseline for entry in wanted[one.id])]
    kept = own or beside[-1:]
    if any(one.id == run.id for one in kept):
        return run
    return replace(run, arms=tuple(arm.id for arm in arms if arm.id != run.baseline))


def beside(
    results: Path, runs: Sequence[tuple[RunRecord, Sequence[Arm]]], tasks: Collection[str] | None
) -> list[tuple[RunRecord, Sequence[Arm]]]:
    """The accepted runs to compare `runs` with: those of their machine and target, on `tasks` only where a
    part of the tasks was asked for."""
    machines = dict.fromkeys(run.fingerprint for run, _ in runs)
    targets = {run.target.id for run, _ in runs}
    found = (one for machine in machines for one in accepted_runs(results, machine))
    return [
        (run, arms)
        for run, arms in found
        if run.target.id in targets and (tasks is None or run.task.name in tasks)
    ]


def _load(store: Store, run_id: str, entries: Sequence[Accepted]) -> tuple[RunRecord, Sequence[Arm]]:
    run, arms = load(store.find(run_id).path)
    by_id = {arm.id: arm for arm in arms}
    for one in entries:
        if problem := _unlike(one, run, by_id.get(one.arm_id)):
            raise UserError(f"{store.root / FILE}: {problem}; accept anew")
    kept = [arm for arm in arms if arm.id == run.baseline or arm.id in {one.arm_id for one in entries}]
    return replace(run, arms=tuple(arm.id for arm in kept)), kept


def _unlike(one: Accepted, run: RunRecord, arm: Arm | None) -> str | None:
    """What an entry says of its run and arm that they are not; None where it is true."""
    if (one.target, one.task, one.fingerprint) != (run.target.id, run.task.name, run.fingerprint):
        place = f"{one.task}, {one.target}, machine {one.fingerprint}"
        return f"run {run.id} is not of {place}, as the entry of {one.arm} says"
    if arm is None:
        return f"run {run.id} has no arm {one.arm} as accepted"
    if (one.arm, one.options or options_text(arm)) != (label_of(arm), options_text(arm)):
        return f"the accepted {one.arm} of {one.task} is {label_of(arm)} with other options in run {run.id}"
    return None


def _order(one: Accepted | Floor) -> tuple[str, ...]:
    if isinstance(one, Accepted):
        rest: tuple[str | None, ...] = (one.fingerprint, one.options)
    else:
        rest = (
            one.options,
            one.task_sha256,
            *(None if count is None else f"{count:09}" for count in (one.max_new_tokens, one.prompts)),
        )
    return one.target, one.task, one.arm, *(value or "" for value in rest)


def _lines(one: Any) -> str:
    """A flat table. A JSON string is a TOML string but for pairs of surrogates and DEL, which must stand as
    themselves and escaped; TOML has no null, so unknown is left out."""
    values = ((f.name, getattr(one, f.name)) for f in fields(one))
    known = ((name, value) for name, value in values if value is not None)
    text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in known)
    return text.replace("\x7f", "\\u007f")
