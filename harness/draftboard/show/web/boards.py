"""From the runs of a store to the front page: which rows share a table, and in which order they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from draftboard.judge.summary import Row
from draftboard.judge.telemetry import Summary
from draftboard.judge.worth import fastest, standing, worth
from draftboard.record.ids import digest
from draftboard.record.records import Origin, RunRecord
from draftboard.show import settings, tables, words
from draftboard.show.collect import Choice, Entry, RunRows, arm, choose
from draftboard.show.web import hardware
from draftboard.show.web.page import Board, Cell, Fact, Front, Line, TaskFact, make_cell, said

TaskKey = tuple[str, str]
"""Name and hash of a task: two that go by one name have a column each."""


NO_ANSWER = "no answer yet: too few prompts for intervals"
NOTHING_PAYS = "plain decoding: nothing measured here pays"


@dataclass(frozen=True, slots=True)
class _Group:
    """The arms of one table, and where they come from."""

    key: str
    title: str
    choices: tuple[Choice, ...]
    entries: dict[tuple[str, str], Entry]
    runs: tuple[RunRecord, ...]
    places: dict[tuple[str, str], int]

    @property
    def rows(self) -> list[Row]:
        return [choice.row for choice in self.choices]


def make_front(found: Sequence[RunRows]) -> Front:
    """The front page of all runs: one table per machine, target and setting, figures to quote first.
    Indicative rows stand in tables of their own, below."""
    groups = list(_groups(found))
    boards = tuple(_board(group) for group in groups)
    facets = {name: dict.fromkeys(board.facets[name] for board in boards) for name in _facets_of(groups)}
    facets["task"] = dict.fromkeys(task for board in boards for task, _ in board.tasks)
    ks = {int(line.k) for board in boards for line in board.lines if line.k}
    facets["k"] = dict.fromkeys(map(str, sorted(ks)))
    records = tuple(row for group in groups for row in group.rows)
    return Front(boards, {name: tuple(values) for name, values in facets.items()}, records)


def _facets_of(groups: Sequence[_Group]) -> list[str]:
    return list(_facets(groups[0])) if groups else []


def _groups(found: Sequence[RunRows]) -> Iterator[_Group]:
    runs = {one.run.id: one.run for one in found}
    entries = {(entry.row.run, entry.row.arm): entry for one in found for entry in one.entries}
    choices = {
        (choice.row.run, choice.row.arm): choice for choice in choose(entry.row for entry in entries.values())
    }
    count = 0
    for title, rows in settings.grouped(choice.row for choice in choices.values()):
        key = settings.key(rows[0])
        here = tuple(choices[row.run, row.arm] for row in rows)
        places = {(row.run, row.arm): count + i for i, row in enumerate(rows)}
        count += len(rows)
        used = tuple(runs[run] for run in dict.fromkeys(row.run for row in rows))
        yield _Group(key, title, here, entries, used, places)


def _board(group: _Group) -> Board:
    rows = group.rows
    tasks = {_task(row): row for row in sorted(rows, key=lambda row: row.task)}
    names = {key: words.task_name(row, rows) for key, row in tasks.items()}
    titles = {key: row.task_title + words.task_mark(row, rows) for key, row in tasks.items()}
    notes = [*tables.notes(rows), *tables.shared_lines(rows, _passed_over(group.choices))]
    return Board(
        id=group.key,
        title=group.title,
        facets=_facets(group),
        environment=tuple(environment(group.runs[-1])),
        tasks=tuple((names[key], said(titles[key])) for key in tasks),
        answers=tuple(_answer(rows, key) for key in tasks),
        lines=_best_marked(list(_lines(group, names))),
        notes=tuple(notes),
        runs=tuple((_run_page(group, run), run_words(run)) for run in group.runs),
    )


def _answer(rows: Sequence[Row], task: TaskKey) -> Fact:
    """The fastest arm on a task that may be used; plain decoding where none pays. Figures without an interval
    pay and cost nothing yet."""
    here = [row for row in rows if _task(row) == task]
    best = fastest(here)
    if best is None:
        unknown = any(row.speedup and row.speedup_lo is None for row in here if not row.baseline)
        return said(NO_ANSWER if unknown else NOTHING_PAYS, tone="quiet")
    stamp = "" if best.valid else ", not to be quoted"
    name = words.names(rows)[best.arm]
    interval = words.interval(best.speedup_lo, best.speedup_hi)
    return said(f"{name}: {words.figure(best.speedup, 'x')} ({interval}{stamp})", tone="gain")


def _run_page(group: _Group, run: RunRecord) -> str:
    page = next(entry.page for key, entry in group.entries.items() if key[0] == run.id)
    return page.rpartition("/")[0] + "/index.html"


def _facets(group: _Group) -> dict[str, str]:
    row = group.rows[0]
    return {
        "target": row.target,
        "hardware": row.device,
        "engine": row.engine,
        "dtype": row.dtype,
        "temperature": f"{row.temperature:g}",
    }


def _task(row: Row) -> TaskKey:
    return row.task, row.task_sha256


def _passed_over(choices: Sequence[Choice]) -> Iterator[tuple[Row, str]]:
    """Later rows that are not shown, and why: nothing that was measured disappears without a word."""
    for choice in choices:
        for later in choice.passed_over:
            why = later.reasons[0] if later.reasons else f"only {later.prompts} prompts"
            yield choice.row, f"a later run, {later.run}, is passed over: {why}"


def _lines(group: _Group, tasks: dict[TaskKey, str]) -> Iterator[tuple[Line, list[Row]]]:
    rows = group.rows
    names = words.names(rows)
    top = max((row.speedup_hi or row.speedup or 1.0 for row in rows), default=1.0)

    def place(row: Row) -> tuple[int, str, str, int, str, str, str]:
        return row.card.order, *arm(row), row.weights_sha256 or "", row.origin or ""

    for key, found in groupby(sorted(rows, key=place), key=place):
        yield _line(group, f"{group.key}-{digest(key)}", names, list(found), tasks, top)


def _line(
    group: _Group, key: str, names: dict[str, str], rows: list[Row], tasks: dict[TaskKey, str], top: float
) -> tuple[Line, list[Row]]:
    row, by_task = rows[-1], {_task(row): row for row in rows}
    assert len(by_task) == len(rows), f"{names[row.arm]} has two rows of one task"
    here = {task: group.entries[one.run, one.arm] for task, one in by_task.items()}
    days, verdict = sorted({words.day(row) for row in rows}), worth(rows)
    line = Line(
        id=key,
        name=said(names[row.arm]),
        baseline=row.baseline,
        best=row.baseline,
        several=False,
        k="" if row.k is None else str(row.k),
        mechanism=said(row.card.mechanism),
        needs=said(row.card.needs),
        worth=replace(said(verdict.text, tone=verdict.tone), value=str(words.RANKS[verdict.tone])),
        origin=_origin(row),
        training=tuple(_training(row, group.entries[row.run, row.arm])),
        memory=_memory(row),
        gpu=_of_hardware(group, here, tasks, hardware.busy),
        energy=_of_hardware(group, here, tasks, hardware.energy),
        when_to_use=said(row.card.when_to_use),
        measured=" to ".join(dict.fromkeys((days[0], days[-1]))),
        cells=tuple(_cell(group, by_task.get(task), name, top) for task, name in tasks.items()),
    )
    return line, rows


def _cell(group: _Group, row: Row | None, task: str, top: float) -> Cell | None:
    if row is None:
        return None
    at = row.run, row.arm
    return make_cell(task, group.places[at], group.entries[at], top)


def _of_hardware(
    group: _Group, here: dict[TaskKey, Entry], tasks: dict[TaskKey, str], say: Callable[[Summary], Fact]
) -> tuple[TaskFact, ...]:
    """What the telemetry of a GPU says of the arm on each task; a CPU's gauges are not the arm's alone."""
    if group.runs[-1].environment.device_type == "cpu":
        return ()
    return tuple((name, hardware.of(here[task], say)) for task, name in tasks.items() if task in here)


def _best_marked(found: Sequence[tuple[Line, list[Row]]]) -> tuple[Line, ...]:
    """The lines; of each method the K that stands best is marked."""
    methods: dict[tuple[str, str], list[int]] = {}
    for index, (_, rows) in enumerate(found):
        methods.setdefault((rows[0].card.label, rows[0].drafter), []).append(index)
    lines = [line for line, _ in found]
    for places in methods.values():
        best = max(places, key=lambda place: standing(found[place][1]))
        for place in places:
            lines[place] = replace(lines[place], best=place == best, several=len(places) > 1)
    return tuple(lines)


def _origin(row: Row) -> Fact | None:
    """Where the weights come from. The targets here are finished models: what is trained here comes after."""
    if row.origin is None:
        return None
    texts: dict[Origin, str] = {
        "trained here": "trained here, after the target",
        "published": "published weights",
        "random": "random weights",
    }
    return said(texts[row.origin], tone="bad" if row.origin == "random" else "plain")


def _training(row: Row, entry: Entry) -> Iterator[Fact]:
    claim = row.card.training_cost
    if claim is not None:
        yield said(f"{claim.text}{' (second-hand)' if claim.second_hand else ''}", claim.source)
    if row.origin == "trained here":
        yield said(words.training(entry.training))


def _memory(row: Row) -> Fact:
    if row.error:
        return said("", "the arm failed")
    return replace(
        said(f"{row.weight_bytes / 1e6:.1f} MB"),
        value=str(row.weight_bytes),
        key=f"{row.run}/{row.arm}/weight_bytes",
    )


def environment(run: RunRecord) -> list[tuple[str, str]]:
    """The machine and the software of a run in words."""
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


def run_words(run: RunRecord) -> str:
    """A run in one line."""
    stamp = ", indicative" if run.indicative else ""
    cap = run.generation.max_new_tokens
    return f"{run.created_utc}: {run.task.title}, {len(run.prompt_ids)} prompts, up to {cap} tokens{stamp}"
