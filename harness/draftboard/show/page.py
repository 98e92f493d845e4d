"""What the page shows, as plain data. Every value is a `Fact` that can be traced and recomputed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftboard.judge.metrics import BY_NAME
from draftboard.judge.summary import Row
from draftboard.show import words
from draftboard.show.words import Tone


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing said: where it belongs, a number's value in full, how it reads, a word of explanation."""

    key: str
    value: str
    text: str
    hint: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on one task. `shares` are the three parts of a round, for a bar; empty when unknown."""

    length: Fact
    length_range: Fact
    speedup: Fact
    speedup_range: Fact
    tokens_per_s: Fact
    terms: tuple[Fact, Fact, Fact]
    shares: tuple[float, ...]
    lossless: Fact
    state: Fact | None


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one K: its card in words and one cell per task; a failed arm has its error in the place
    of a cell, and None means not measured."""

    name: Fact
    baseline: bool
    mechanism: Fact
    origin: Fact
    training_cost: Fact
    when_to_use: Fact
    measured: Fact
    cells: tuple[Cell | Fact | None, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """Everything measured on one machine, target and setting: one table."""

    id: str
    title: Fact
    environment: tuple[tuple[str, Fact], ...]
    tasks: tuple[Fact, ...]
    lines: tuple[Line, ...]
    notes: tuple[Fact, ...]
    runs: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric explained."""

    name: str
    title: Fact
    text: Fact


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    boards: tuple[Board, ...]
    definitions: tuple[Definition, ...]


def facts(part: Any) -> Iterator[Fact]:
    """Every fact in a page or a part of one."""
    if isinstance(part, Fact):
        yield part
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from facts(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from facts(item)


def said(key: str, text: str, hint: str = "", tone: Tone = "plain") -> Fact:
    """A fact that is a text; an empty one reads as a dash."""
    return Fact(key, "", words.visible(text) or words.DASH, words.visible(hint), tone)


def make_cell(row: Row) -> Cell | Fact:
    """The cell of a row, the error of a failed one."""
    terms = [_figure(row, name) for name in ("t_draft_ms", "t_verify_ms", "t_other_ms")]
    parts = (row.t_draft_ms, row.t_verify_ms, row.t_other_ms)
    key = f"{row.run}/{row.arm}"
    if row.error:
        return said(f"{key}/error", f"failed: {row.error}", tone="bad")
    return Cell(
        length=_figure(row, "acceptance_length"),
        length_range=_range(row, "acceptance_length"),
        speedup=_speedup(row),
        speedup_range=_range(row, "speedup"),
        tokens_per_s=_figure(row, "tokens_per_s"),
        terms=(terms[0], terms[1], terms[2]),
        shares=tuple(ms for ms in parts if ms is not None and ms >= 0) if None not in parts else (),
        lossless=_lossless(row, key),
        state=_state(row, key),
    )


def _figure(row: Row, name: str) -> Fact:
    metric, value = BY_NAME[name], getattr(row, name)
    hint = row.missing.get(name, "") if value is None else ""
    return Fact(
        f"{row.run}/{row.arm}/{name}", _full(value), words.figure(value, metric.unit), words.visible(hint)
    )


def _speedup(row: Row) -> Fact:
    return dataclasses.replace(
        _figure(row, "speedup"), text=words.speedup_words(row), tone=words.speedup_tone(row)
    )


def _range(row: Row, name: str) -> Fact:
    lo, hi = getattr(row, f"{name}_lo"), getattr(row, f"{name}_hi")
    value = "" if lo is None else f"{_full(lo)} {_full(hi)}"
    hint = row.missing.get(f"{name}_lo", "95 % interval over prompts")
    return Fact(f"{row.run}/{row.arm}/{name}_interval", value, words.interval(lo, hi), words.visible(hint))


def _lossless(row: Row, key: str) -> Fact:
    text, tone = words.lossless_words(row), words.lossless_tone(row)
    return said(f"{key}/lossless", text, row.lossless_reason, tone)


def _state(row: Row, key: str) -> Fact | None:
    if row.indicative:
        return said(f"{key}/state", "indicative", "; ".join(row.reasons), "quiet")
    return None if row.valid else said(f"{key}/state", "not valid", "; ".join(row.reasons), "loss")


def _full(value: float | None) -> str:
    return "" if value is None else repr(value)
