"""From the runs of a store to the page's data: which rows share a table, and in which order they stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from draftboard.judge.lossless import DEFINITION
from draftboard.judge.metrics import METRICS
from draftboard.judge.summary import Row
from draftboard.record.ids import digest
from draftboard.record.records import Claim, RunRecord
from draftboard.show import tables, words
from draftboard.show.collect import RunRows, current
from draftboard.show.page import Board, Definition, Fact, Line, Page, make_cell, said

Setting = tuple[str, ...]


def make_page(found: Sequence[RunRows]) -> Page:
    """The page of all runs: one board per machine, target and setting."""
    runs = {one.run.id: one.run for one in found}
    shown = current(row for one in found for row in one.rows)
    ordered = sorted(shown, key=lambda row: _setting(runs[row.run]))
    groups = groupby(ordered, key=lambda row: _setting(runs[row.run]))
    boards = tuple(_board(setting, list(rows), runs) for setting, rows in groups)
    return Page(boards, _definitions())


def _setting(run: RunRecord) -> Setting:
    """What two rows must share to stand in one table."""
    sampling = (run.sampling.temperature, run.sampling.top_k, run.sampling.top_p)
    target = (run.target.id, run.target.revision, run.dtype, run.engine, run.concurrency)
    return tuple(map(str, (*target, run.environment.device, run.fingerprint, *sampling)))


def _board(setting: Setting, rows: Sequence[Row], runs: dict[str, RunRecord]) -> Board:
    board = digest(setting)
    tasks = sorted({(row.task, row.task_title) for row in rows})
    used = [runs[run] for run in dict.fromkeys(row.run for row in rows)]
    return Board(
        id=board,
        title=said(f"{board}/title", words.settings(rows[-1])),
        environment=tuple((name, said(f"{board}/{name}", text)) for name, text in _environment(used[-1])),
        tasks=tuple(said(f"{board}/task/{name}", title, name) for name, title in tasks),
        lines=_lines(board, rows, [name for name, _ in tasks]),
        notes=tuple(said(f"{board}/note/{i}", note) for i, note in enumerate(tables.notes(rows))),
        runs=tuple(said(f"{board}/run/{run.id}", _run_words(run)) for run in used),
    )


def _lines(board: str, rows: Sequence[Row], tasks: Sequence[str]) -> tuple[Line, ...]:
    names = words.names(rows)

    def place(row: Row) -> tuple[int, str, int, str, str]:
        return row.card.order, row.card.label, row.k or 0, names[row.arm], row.origin or ""

    groups = groupby(sorted(rows, key=place), key=place)
    return tuple(_line(f"{board}/line/{i}", at[3], list(g), tasks) for i, (at, g) in enumerate(groups))


def _line(key: str, name: str, rows: Sequence[Row], tasks: Sequence[str]) -> Line:
    row, by_task = rows[-1], {row.task: row for row in rows}
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
