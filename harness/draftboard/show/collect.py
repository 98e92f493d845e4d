"""Rows of everything in a store, and the choice among several runs of one arm."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftboard.errors import UserError
from draftboard.judge import telemetry
from draftboard.judge.explain import WhatIf, neighbours, what_if
from draftboard.judge.lossless import miscounted
from draftboard.judge.soundness import unsound
from draftboard.judge.summary import Row, rows
from draftboard.judge.terms import Terms
from draftboard.record.ids import digest
from draftboard.record.records import Arm, RunRecord, Training
from draftboard.record.store import Store, arm_file_name, load, parse_utc
from draftboard.show.settings import setting


@dataclass(frozen=True, slots=True)
class Entry:
    """What pages show of an arm: its row, its replies' page without the ending, the changes of its terms
    (none where a term is unknown), what its training cost, and its telemetry or why there is none."""

    row: Row
    page: str
    changes: tuple[WhatIf, ...]
    training: Training | None
    hardware: telemetry.Summary | None
    telemetry_missing: str | None


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run and what there is to show of its arms."""

    run: RunRecord
    entries: tuple[Entry, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of its arms."""
        return tuple(entry.row for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Choice:
    """The row that stands for one arm on one task, and the later ones that are worse, oldest first."""

    row: Row
    passed_over: tuple[Row, ...]


def read_all(store: Store) -> list[RunRows]:
    """Every run of a store with its rows, oldest first."""
    return [
        summarise(f"runs/{run.path.parent.name}/{run.path.name}", *load(run.path)) for run in store.runs()
    ]


def summarise(folder: str, run: RunRecord, arms: Sequence[Arm]) -> RunRows:
    """A run whose arms have their pages in `folder`."""
    pairs = zip(rows(run, arms), arms, strict=True)
    return RunRows(run, tuple(_entry(folder, run, row, arm) for row, arm in pairs))


def _entry(folder: str, run: RunRecord, row: Row, arm: Arm) -> Entry:
    sampled = None if arm.telemetry is None else telemetry.summarise(arm.telemetry, run.idle)
    found = changes(run, row, arm)
    return Entry(row, page_of(folder, arm), found, arm.weights.training, sampled, arm.telemetry_missing)


def page_of(folder: str, arm: Arm) -> str:
    """Where an arm's page lies, without its ending."""
    return f"{folder}/{arm_file_name(arm).removesuffix('.json')}"


def changes(run: RunRecord, row: Row, arm: Arm) -> tuple[WhatIf, ...]:
    """The terms of an arm as measured, and changes of them; empty for the baseline and unknown terms."""
    terms = None if row.baseline else terms_of(row)
    return (*what_if(terms), *neighbours(terms, arm, run.verify_ms)) if terms else ()


def terms_of(row: Row) -> Terms | None:
    """The terms as a row has them; None where one is unknown, or no time was taken."""
    if row.speedup is None:
        return None
    found = (row.acceptance_length, row.t_target_ms, row.t_draft_ms, row.t_verify_ms, row.t_other_ms)
    known = [value for value in found if value is not None]
    return Terms(*known) if len(known) == len(found) else None


def rows_of(store: Store) -> list[Row]:
    """The rows of every run, oldest first."""
    return [row for found in read_all(store) for row in found.rows]


def choose(all_rows: Iterable[Row]) -> list[Choice]:
    """One row for each setting, task, arm and weights: a valid one before one that is not, then one that is
    not indicative, then the one with the most prompts, then the newest. Prompts that differ are another task,
    whatever its name. Oldest first."""
    groups: dict[Hashable, list[Row]] = {}
    for row in sorted(all_rows, key=_moment):
        groups.setdefault((setting(row), row.task, row.task_sha256, arm(row)), []).append(row)
    choices = (choice for found in groups.values() for choice in _by_weights(found))
    return sorted(choices, key=lambda choice: _moment(choice.row))


def current(all_rows: Iterable[Row]) -> list[Row]:
    """The rows of `choose`."""
    return [choice.row for choice in choose(all_rows)]


def arm(row: Row) -> tuple[str, str, int, str]:
    """What an arm was asked to be: method, K and options. Its weights are a fact of their own."""
    return row.card.label, row.drafter, -1 if row.k is None else row.k, digest(row.options)


def _by_weights(found: Sequence[Row]) -> Iterator[Choice]:
    """A choice for each weights. An arm that failed may have failed before it read any: then it is a later
    try at whichever weights were read, and stands for itself only where none were."""
    unread = [row for row in found if _unread(row)]
    read: dict[str | None, list[Row]] = {}
    for row in found:
        if not _unread(row):
            read.setdefault(row.weights_sha256, []).append(row)
    for group in read.values() or [unread]:
        best = max(group, key=lambda row: (row.valid, not row.indicative, row.prompts, _moment(row)))
        tries = group if group is unread else sorted([*group, *unread], key=_moment)
        yield Choice(best, tuple(row for row in tries if _moment(row) > _moment(best)))


def _unread(row: Row) -> bool:
    return row.error is not None and row.weights_sha256 is None


def verify(store: Store) -> str:
    """One line on a store that is sound. Raises UserError for a store without runs, for a record that cannot
    be read, and for one whose counts and times contradict each other; it names the first."""
    arm_count, problems = 0, []
    found = [load(stored.path) for stored in store.runs()]
    if not found:
        raise UserError(f"{store.root}: no runs to verify; draftboard run makes some")
    for run, arms in found:
        arm_count += len(arms)
        problems += [f"run {run.id}, arm {arm.id}: {what}" for arm, what in _problems(run, arms)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{store.root}: {problems[0]}{more}; measure again or remove the run")
    return f"{store.root}: {len(found)} runs with {arm_count} arms read; none contradicts itself"


def _problems(run: RunRecord, arms: Sequence[Arm]) -> Iterator[tuple[Arm, str]]:
    baseline = next(arm for arm in arms if arm.id == run.baseline)
    for arm in arms:
        yield from ((arm, what) for what in unsound(run, arm))
        if wrong := miscounted(baseline, arm):
            yield arm, wrong


def _moment(row: Row) -> tuple[float, str]:
    return parse_utc(row.created_utc, row.run).timestamp(), row.run
