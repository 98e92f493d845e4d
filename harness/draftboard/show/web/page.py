"""What the front page shows, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from markupsafe import Markup

from draftboard.judge.metrics import BY_NAME
from draftboard.judge.summary import Row
from draftboard.show import words
from draftboard.show.collect import Entry
from draftboard.show.web import charts
from draftboard.show.words import Tone


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing said: how it reads, a number's value in full, a word of explanation. `key` names a measured
    figure by run, arm and metric, so that it can be found and recomputed."""

    text: str
    value: str = ""
    hint: str = ""
    tone: Tone = "plain"
    key: str = ""


Lines = tuple[tuple[str, ...], ...]
"""A table's cells."""

PLOTTED = ("speedup", "acceptance_length")
"""The metrics of which trends are drawn."""


@dataclass(frozen=True, slots=True)
class Section:
    """A chart with the table of its figures, or the reason why there is neither."""

    chart: Markup | None
    table: Lines
    notes: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on one task. `record` is its place among the page's records; a failed arm has `failure` in the
    place of its figures."""

    task: str
    record: int
    page: str
    length: Fact
    length_range: str
    speedup: Fact
    speedup_range: str
    whisker: Markup
    draft: Fact
    draft_share: str
    lossless: Fact
    state: Fact | None
    failure: Fact | None


TaskFact = tuple[str, Fact]
"""A task's name and what is said of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one K: words of its card, measurements, and one cell per task (None: not measured).
    `best` marks the K that stands best of `several`; `origin` is None for a method without weights."""

    id: str
    name: Fact
    baseline: bool
    best: bool
    several: bool
    k: str
    mechanism: Fact
    needs: Fact
    worth: Fact
    origin: Fact | None
    training: tuple[Fact, ...]
    memory: Fact
    gpu: tuple[TaskFact, ...]
    energy: tuple[TaskFact, ...]
    when_to_use: Fact
    measured: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """Everything measured on one machine, target and setting: one table. `facets` are what filters ask,
    `answers` which arm is the fastest on each of `tasks`."""

    id: str
    title: str
    facets: dict[str, str]
    environment: tuple[tuple[str, str], ...]
    tasks: tuple[tuple[str, Fact], ...]
    answers: tuple[Fact, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    runs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Front:
    """The front page: its tables, the values of each filter, and the rows that can be taken away."""

    boards: tuple[Board, ...]
    filters: dict[str, tuple[str, ...]]
    records: tuple[Row, ...]


def said(text: str, hint: str = "", tone: Tone = "plain") -> Fact:
    """A fact that is a text; an empty one reads as a dash."""
    return Fact(text or words.DASH, "", hint, tone)


def make_cell(task: str, record: int, entry: Entry, top: float) -> Cell:
    """The cell of an arm; `top` ends the scale of its interval's picture."""
    row, key = entry.row, f"{entry.row.run}/{entry.row.arm}"
    picture = Markup() if row.speedup is None else charts.whisker(*_speedups(row), top)
    return Cell(
        task=task,
        record=record,
        page=f"{entry.page}.html",
        length=figure(row, "acceptance_length"),
        length_range=words.interval(row.acceptance_length_lo, row.acceptance_length_hi),
        speedup=_speedup(row),
        speedup_range=words.interval(row.speedup_lo, row.speedup_hi),
        whisker=picture,
        draft=figure(row, "t_draft_ms"),
        draft_share=words.figure(row.draft_share, "") if row.draft_share is not None else "",
        lossless=said(words.lossless_words(row), row.lossless_reason, words.lossless_tone(row)),
        state=_state(row),
        failure=dataclasses.replace(said(f"failed: {row.error}", tone="bad"), key=f"{key}/error")
        if row.error
        else None,
    )


def _speedups(row: Row) -> tuple[float, float | None, float | None]:
    assert row.speedup is not None
    return row.speedup, row.speedup_lo, row.speedup_hi


def figure(row: Row, name: str) -> Fact:
    """A metric of a row."""
    value: float | None = getattr(row, name)
    hint = row.missing.get(name, "") if value is None else ""
    shown = words.figure(value, BY_NAME[name].unit)
    full = "" if value is None else repr(value)
    return Fact(shown, full, hint, key=f"{row.run}/{row.arm}/{name}")


def _speedup(row: Row) -> Fact:
    return dataclasses.replace(
        figure(row, "speedup"), text=words.speedup_words(row), tone=words.speedup_tone(row)
    )


def _state(row: Row) -> Fact | None:
    if row.indicative:
        return said("indicative", "; ".join(row.reasons), "quiet")
    return None if row.valid else said("not valid", "; ".join(row.reasons), "loss")
