"""The rows of `results`: as a table for the terminal, JSON, CSV, Markdown or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from draftboard.errors import UserError, unknown
from draftboard.judge.metrics import BY_NAME
from draftboard.judge.summary import Row
from draftboard.show import published, settings, words
from draftboard.show.collect import rows_of, verify
from draftboard.show.export import as_csv, as_json, as_parquet
from draftboard.show.layout import new_table, show
from draftboard.show.words import Tone

__all__ = ["FORMATS", "columns", "markdown", "notes", "render", "rows_of", "shared_lines", "table", "verify"]

NOTHING = "No results yet; `draftboard run` makes some."
PLAIN_WIDTH = 160

_STYLES: dict[Tone, str] = {"gain": "green", "loss": "red", "bad": "bold red", "quiet": "dim", "plain": ""}


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows at one place."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    """A column for readers, and the field in whose place it stands."""

    title: str
    field: str
    cell: Callable[[Row], Cell]
    right: bool = True


def _figure(name: str) -> Column:
    metric = BY_NAME[name]
    title = words.with_unit(metric)
    return Column(title, name, lambda row: Cell(words.figure(getattr(row, name), metric.unit)))


def _range(name: str) -> Column:
    return Column(
        "95 %",
        f"{name}_lo",
        lambda row: Cell(words.interval(getattr(row, f"{name}_lo"), getattr(row, f"{name}_hi")), "quiet"),
    )


def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of a table of these rows, which decide how an arm must be named and whether the state of
    each row needs a column."""
    names = words.names(rows)
    shown = (
        Column("task", "task", lambda row: Cell(words.task_name(row, rows)), right=False),
        Column("drafter", "drafter", lambda row: Cell(names[row.arm]), right=False),
        _figure("acceptance_length"),
        Column("speedup", "speedup", lambda row: Cell(words.speedup_words(row), words.speedup_tone(row))),
        _range("speedup"),
        _figure("tokens_per_s"),
        _figure("ttft_ms"),
        Column(
            "lossless",
            "lossless",
            lambda row: Cell(words.lossless_words(row), words.lossless_tone(row)),
            right=False,
        ),
    )
    state = Column("", "valid", _state, right=False)
    return shown if _stamped(rows) or all(row.valid for row in rows) else (*shown, state)


def _stamped(rows: Sequence[Row]) -> bool:
    """Whether one stamp in the title says what there is to say of every row's state."""
    return all(row.indicative and not row.error and len(row.reasons) == 1 for row in rows)


def _state(row: Row) -> Cell:
    if row.error:
        return Cell("failed", "bad")
    if row.indicative:
        return Cell("indicative", "quiet")
    return Cell("") if row.valid else Cell("not valid", "loss")


def table(rows: Sequence[Row]) -> RenderableType:
    """A table for a rich console, one for each target, machine and setting, with its notes below."""
    groups = settings.grouped(rows)
    return Group(*(part for title, found in groups for part in _one_table(title, found)))


def _one_table(title: str, rows: Sequence[Row]) -> Iterable[RenderableType]:
    shown = columns(rows)
    made = new_table([c.title for c in shown], "".join("r" if c.right else "l" for c in shown), title)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.run != row.run:
            made.add_section()
        cells = (column.cell(row) for column in shown)
        made.add_row(*(Text(words.visible(cell.text), _STYLES[cell.tone]) for cell in cells))
    yield made
    yield from (Text(words.visible(f"  {note}"), "dim") for note in notes(rows))


def notes(rows: Sequence[Row]) -> list[str]:
    """Every reason against a row, every tie and the reason of each dash."""
    fields = {column.field for column in columns(rows)}
    return shared_lines(rows, ((row, text) for row in rows for text in _remarks(row, fields)))


def shared_lines(rows: Sequence[Row], remarks: Iterable[tuple[Row, str]]) -> list[str]:
    """Remarks on some of the rows, each with its task and arm; arms that share a remark share its line."""
    names = words.names(rows)
    arms: dict[tuple[str, str], list[str]] = {}
    for row, text in remarks:
        arms.setdefault((words.task_name(row, rows), text), []).append(names[row.arm])
    return [f"{task}, {'; '.join(dict.fromkeys(found))}: {text}" for (task, text), found in arms.items()]


def _remarks(row: Row, fields: Container[str]) -> Iterator[str]:
    yield from row.reasons
    if row.left_out:
        yield f"{words.LEFT_OUT}: {', '.join(row.left_out)}"
    if row.lossless == "tie":
        yield f"tie: {row.lossless_reason}"
    yield from () if row.error else published.remarks(row)
    gaps = {why for field, why in row.missing.items() if field in fields and getattr(row, field) is None}
    yield from () if row.error else (f"{words.DASH} {gap}" for gap in sorted(gaps))


def markdown(rows: Sequence[Row]) -> str:
    """The same tables in Markdown."""
    parts = []
    for title, part_rows in settings.grouped(rows):
        shown = columns(part_rows)
        lines = [[words.markdown(column.cell(row).text) for column in shown] for row in part_rows]
        head = [
            [words.markdown(column.title) for column in shown],
            ["--:" if c.right else "---" for c in shown],
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in head + lines)
        tail = "".join(f"\n- {words.markdown(note)}" for note in notes(part_rows))
        parts.append(f"**{words.markdown(title)}**\n\n{body}\n" + (f"{tail}\n" if tail else ""))
    return "\n".join(parts)


def _terminal_text(rows: Sequence[Row]) -> str:
    """The table in the terminal's width and colours; wide and plain where there is no terminal."""
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    with console.capture() as captured:
        show(console, table(rows) if rows else NOTHING)
    return captured.get()


FORMATS: dict[str, Callable[[Sequence[Row]], str | bytes]] = {
    "table": _terminal_text,
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
    "parquet": as_parquet,
}


def render(rows: Sequence[Row], form: str, out: Path | None = None) -> str:
    """The rows in one of `FORMATS`: as text, or written to `out` and an empty text. Raises UserError for
    another format, and for Parquet without a file."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    made = FORMATS[form](rows)
    if out is not None:
        out.write_bytes(made if isinstance(made, bytes) else made.encode())
        return ""
    if isinstance(made, bytes):
        raise UserError(f"{form} is not text; give a file to write with --out")
    return made
