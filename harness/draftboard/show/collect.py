"""Rows of everything in a store, and the choice among several runs of one arm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftboard.errors import UserError
from draftboard.judge.soundness import unsound
from draftboard.judge.summary import Row, rows
from draftboard.record.records import RunRecord
from draftboard.record.store import Store, load, parse_utc


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run and the rows of its arms."""

    run: RunRecord
    rows: tuple[Row, ...]


def read_all(store: Store) -> list[RunRows]:
    """Every run of a store with its rows, oldest first."""
    loaded = (load(stored.path) for stored in store.runs())
    return [RunRows(run, tuple(rows(run, arms))) for run, arms in loaded]


def rows_of(store: Store) -> list[Row]:
    """The rows of every run, oldest first."""
    return [row for found in read_all(store) for row in found.rows]


def current(all_rows: Iterable[Row]) -> list[Row]:
    """One row per arm and machine: the newest of those that are not indicative, else the newest. An arm's
    id says what was measured, not on what, so equal ids on two machines are two rows. Rows of a task that
    has changed since, on the same machine, are left out: their figures do not compare."""
    chosen: dict[tuple[str, str], Row] = {}
    newest: dict[tuple[str, str], str] = {}
    ordered = sorted(all_rows, key=_moment)
    for row in ordered:
        newest[row.fingerprint, row.task] = row.task_sha256
    for row in sorted(ordered, key=lambda row: not row.indicative):
        if newest[row.fingerprint, row.task] == row.task_sha256:
            chosen[row.fingerprint, row.arm] = row
    return sorted(chosen.values(), key=_moment)


def verify(store: Store) -> str:
    """One line on a store that is sound. Raises UserError for a store without runs, for a record that cannot
    be read, and for one whose counts and times contradict each other; it names the first."""
    arm_count, problems = 0, []
    found = [load(stored.path) for stored in store.runs()]
    if not found:
        raise UserError(f"{store.root}: no runs to verify; draftboard run makes some")
    for run, arms in found:
        arm_count += len(arms)
        problems += [f"run {run.id}, arm {arm.id}: {what}" for arm in arms for what in unsound(run, arm)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{store.root}: {problems[0]}{more}; measure again or remove the run")
    return f"{store.root}: {len(found)} runs with {arm_count} arms read; none contradicts itself"


def _moment(row: Row) -> tuple[float, str]:
    return parse_utc(row.created_utc, row.run).timestamp(), row.run
