"""The commands `compare` and `gate`: they parse, import what they need and call."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftboard.errors import unknown

Root = Annotated[Path, typer.Option(help="The checkout: where tasks/, results/ and site/ lie.")]
Out = Annotated[Path | None, typer.Option(help="File for --format, instead of the screen.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command()(compare)


def compare(
    base: Annotated[str, typer.Argument(help="A run's id, a folder of runs, or a git ref.")],
    candidate: Annotated[str, typer.Argument(help="The same, for the other side.")],
    format: Annotated[str, typer.Option(help="table, markdown, json, junit or benchmark-action.")] = "table",
    out: Out = None,
    root: Root = Path(),
) -> None:
    """Compare what two sides measured, arm by arm; it decides nothing (`gate` does)."""
    from draftboard.judge.findings import Limits
    from draftboard.judge.gate import Trial
    from draftboard.record.sides import read_side

    sides = [read_side(text, root) for text in (base, candidate)]
    ruling = Trial(Limits(), one_machine=False).add(*sides)
    _write(ruling, format, out, decided=False)


def _write(ruling: Any, form: str, out: Path | None, *, decided: bool) -> None:
    """Shows a ruling, or the comparison in it; on GitHub it also joins the job's summary."""
    from draftboard.show import comparison, comparison_files
    from draftboard.show.layout import show

    formats = comparison_files.RULING_FORMATS if decided else comparison_files.FORMATS
    if form not in {"table", *formats}:
        raise unknown("format", form, {"table", *formats})
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(formats["markdown"](ruling))
    if form == "table":
        made = comparison.ruling(ruling) if decided else comparison.table(ruling.comparison)
        show(Console(), made)
    elif out is not None:
        out.write_text(formats[form](ruling), encoding="utf-8")
    else:
        sys.stdout.write(formats[form](ruling))
