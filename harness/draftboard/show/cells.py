"""What a measurement will do and how long it may take, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table


class Cell(Protocol):
    """One arm on one task. `seconds` is None where no earlier run tells."""

    @property
    def task(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def prompts(self) -> int: ...
    @property
    def replies(self) -> int: ...
    @property
    def tokens_at_most(self) -> int: ...
    @property
    def seconds(self) -> float | None: ...


def show(found: Sequence[Cell], console: Console) -> None:
    """Prints the cells and the time they may take."""
    table = Table("task", "arm", "prompts", "replies", "tokens at most", "estimate", box=None)
    for cell in found:
        seconds = "unknown" if cell.seconds is None else f"{cell.seconds:.0f} s"
        numbers = (str(n) for n in (cell.prompts, cell.replies, cell.tokens_at_most))
        table.add_row(cell.task, cell.arm, *numbers, seconds)
    console.print(table)
    known = [cell.seconds for cell in found if cell.seconds is not None]
    rest = len(found) - len(known)
    note = f"; {rest} of {len(found)} cells have no earlier run to judge by" if rest else ""
    # Loading, compiling, warm-up and the checks afterwards are of no cell, and no earlier run tells of them.
    time = f"about {sum(known) / 60:.1f} min of replies" if known else "time unknown"
    console.print(f"{len(found)} cells, {time}{note}")
