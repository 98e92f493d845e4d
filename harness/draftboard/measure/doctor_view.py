"""The doctor's report on the terminal: a heading a section, a line a finding, advice where there is some."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from draftboard.measure.doctor import Line, Section

_STYLES = {"ok": "", "warning": "yellow", "unknown": "dim"}
_MARKS = {"ok": " ", "warning": "!", "unknown": "?"}


def show(sections: Iterable[Section], console: Console) -> None:
    """Prints sections as they come, and at the end how many findings ask for something to be done."""
    warnings = 0
    for section in sections:
        console.print(Text(section.title, "bold"))
        width = max(len(line.name) for line in section.lines)
        for line in section.lines:
            console.print(_text(line, width), soft_wrap=True)
        warnings += sum(line.state == "warning" for line in section.lines)
    console.print(f"{warnings} warnings" if warnings else "no warnings")


def _text(line: Line, width: int) -> Text:
    text = Text(f" {_MARKS[line.state]} {line.name:<{width}}  {line.value}", _STYLES[line.state])
    return text.append(f"\n   {'':<{width}}  -> {line.advice}") if line.advice else text
