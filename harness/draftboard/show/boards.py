"""From the runs of a store to the page's data: which rows share a table, and in which order they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from draftboard.judge.lossless import DEFINITION
from draftboard.judge.metrics import METRICS
from draftboard.judge.summary import Row
from draftboard.record.ids import digest
from draftboard.record.records import Claim, RunRecord
from draftboard.show import settings, tables, words
from draftboard.show.collect import Choice, RunRows, arm, choose
from draftboard.show.page import Board, Definition, Fact, Line, Page, make_cell, said

TaskKey = tuple[str, str]
"""Name and hash of a task: two that go by one name have a column each."""


def make_page(found: Sequence[RunRows]) -> Page:
    """The page of all runs: one board per machine, target and setting, figures to quote first. Indicative
    rows stand on boards of their own, below."""
    runs = {one.run.id: one.run for one in found}
    choices = choose(row for one in found for row in one.rows)
    at = {(choice.row.run, choice.row.arm): choice for choice in choices}
    boards = (
        _board(title, [at[row.run, row.arm] for row in rows], runs)
        for title, rows in settings.grouped(choice.row for choice in choices)
    )
    return Page(tuple(boards), _definitions())


def _board(title: str, choices: Sequence[Choice], runs: dict[str, RunRecord]) -> Board:
    rows = [choice.row for choice in choices]
    board = digest([settings.setting(rows[0]), rows[0].indicative])
    tasks = {_task(row): row for row in sorted(rows, key=lambda row: row.task)}
    used = [runs[run] for run in dict.fromkeys(row.run for row in rows)]
    notes = [*tables.notes(rows), *tables.shared_lines(rows, _passed_over(choices))]
    return Board(
        id=board,
        title=said(f"{board}/title", title),
        environment=tuple((name, said(f"{board}/{name}", text)) for name, text in _environment(used[-1])),
        tasks=tuple(_task_fact(board, row, rows) for row in tasks.values()),
        lines=_lines(board, rows, list(tasks)),
        notes=tuple(said(f"{board}/note/{i}", note) for i, note in enumerate(notes)),
        runs=tuple(said(f"{board}/run/{run.id}", _run_words(run)) for run in used),
    )


def _task(row: Row) -> TaskKey:
    return row.task, row.task_sha256


def _task_fact(board: str, row: Row, rows: Sequence[Row]) -> Fact:
    key = "/".join((board, "task", *_task(row)))
    return said(key, row.task_title + words.task_mark(row, rows), words.task_name(row, rows))


def _passed_over(choices: Sequence[Choice]) -> Iterator[tuple[Row, str]]:
    """Later rows that are not shown, and why: nothing that was measured disappears without a word."""
    for choice in choices:
        for later in choice.passed_over:
            why = later.reasons[0] if later.reasons else f"only {later.prompts} prompts"
            yield choice.row, f"a later run, {later.run}, is passed over: {why}"


def _lines(board: str, rows: Sequence[Row], tasks: Sequence[TaskKey]) -> tuple[Line, ...]:
    names = words.names(rows)

    def place(row: Row) -> tuple[int, str, str, int, str, str, str]:
        return row.card.order, *arm(row), row.weights_sha256 or "", row.origin or ""

    groups = [list(group) for _, group in groupby(sorted(rows, key=place), key=place)]
    return tuple(_line(f"{board}/line/{i}", names[g[0].arm], g, tasks) for i, g in enumerate(groups))


def _line(key: str, name: str, rows: Sequence[Row], tasks: Sequence[TaskKey]) -> Line:
    row, by_task = rows[-1], {_task(row): row for row in rows}
    assert len(by_task) == len(rows), f"{name} has two rows of one task"
    days = sorted({words.day(row) for row in rows})
    return Line(
        name=said(f"{key}/name", name),
        baseline=row.baseline,
        mechanism=said(f"{key}/mechanism", row.card.mechanism),
        origin=said(
            f"{key}/origin", row.origin or "no weights", tone="bad" if row.origin == "random" else "plain"
        ),
        training_cost=_claim(f"{key}/training", row.card.training_cost),
        when_to_use=said(f"{key}/when", row.card.when_to_use),
        measured=said(f"{key}/measured", " to ".join(dict.fromkeys((days[0], days[-1])))),
        cells=tuple(make_cell(by_task[task]) if task in by_task else None for task in tasks),
    )


def _claim(key: str, claim: Claim | None) -> Fact:
    if claim is None:
        return said(key, "")
    mark = " (second-hand)" if claim.second_hand else ""
    return said(key, f"{claim.text}{mark}", claim.source)


def _environment(run: RunRecord) -> list[tuple[str, str]]:
    e, dirty = run.environment, " with local changes" if run.environment.git_dirty else ""
    versions = f"Python {e.python}, torch {e.torch}, transformers {e.transformers}, numpy {e.numpy}"
    gpu = ", ".join(part for part in (e.driver and f"driver {e.driver}", e.cuda and f"CUDA {e.cuda}") if part)
    found = {
        "device": e.device if e.device_count == 1 else f"{e.device_count} x {e.device}",
        "processor": f"{e.cpu}, {e.threads} of {e.cpu_cores} cores used, {e.memory_bytes / 2**30:.0f} GiB",
        "software": f"{versions}, {e.os}",
        "GPU software": gpu,
        "dtype": f"{run.dtype}, {run.target.forward} forward",
        "draftboard": f"{e.draftboard}, commit {(e.git_sha or 'unknown')[:10]}{dirty}",
    }
    return [(name, text) for name, text in found.items() if text]


def _run_words(run: RunRecord) -> str:
    stamp = ", indicative" if run.indicative else ""
    cap = run.generation.max_new_tokens
    return (
        f"{run.created_utc}: {run.task.title}, {len(run.prompt_ids)} prompts, up to {cap} tokens{stamp}, "
        f"run {run.id}: {run.command}"
    )


def _definitions() -> tuple[Definition, ...]:
    found = [(metric.name, metric.title, metric.definition) for metric in METRICS]
    found.append(("lossless", "lossless", DEFINITION))
    return tuple(
        Definition(name, said(f"title/{name}", title), said(f"definition/{name}", text))
        for name, title, text in found
    )
