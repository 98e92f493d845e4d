"""Tables in the terminal that never cut a figure: a terminal too narrow for one wraps it instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from draftboard.show import words

TEXT_WIDTH = 40
"""Longer texts in a cell go on in its next line."""

_WIDEST = 1000


class WholeTable(Table):
    """A table as wide as its cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = self.__rich_measure__(console, options.update(width=_WIDEST)).maximum
        yield from super().__rich_console__(console, options.update(width=natural))


def new_table(heads: Sequence[str], sides: str, title: str | None = None) -> WholeTable:
    """An empty table; `sides` has one letter per column: l for texts, r for figures."""
    shown = Text(words.visible(title), "bold") if title else None
    table = WholeTable(
        title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for head, side in zip(heads, sides, strict=True):
        if side == "r":
            table.add_column(Text(head), justify="right", no_wrap=True)
        else:
            table.add_column(Text(head), max_width=TEXT_WIDTH, overflow="fold")
    return table


def show(console: Console, *parts: RenderableType) -> None:
    """Prints without cropping."""
    console.print(*parts, sep="\n", markup=False, highlight=False, crop=False)
