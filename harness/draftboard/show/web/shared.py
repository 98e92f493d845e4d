"""The pages made from all runs together, and the files they refer to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftboard.judge.lossless import DEFINITION as LOSSLESS
from draftboard.judge.metrics import METRICS
from draftboard.judge.positions import CONDITIONAL, UNCONDITIONAL
from draftboard.judge.worth import DEFINITION as WORTH
from draftboard.show.collect import RunRows
from draftboard.show.export import FIELDS, records
from draftboard.show.web.boards import make_front
from draftboard.show.web.renderer import Renderer

TAKEN = (*FIELDS[: FIELDS.index("run") + 1], "arm", "origin", "indicative", "reasons", "error")
"""Fields of a row that can be taken away from the front page; `draftboard results` gives all."""


def pages(renderer: Renderer, found: Sequence[RunRows]) -> Iterator[tuple[str, str]]:
    """Paths and texts."""
    front = make_front(found)
    rows = [[record[name] for name in TAKEN] for record in records(front.records)]
    data = {"fields": TAKEN, "rows": rows}
    yield "index.html", renderer.page("index.html.j2", "index.html", front=front, data=data)
    yield "definitions.html", renderer.page("definitions.html.j2", "definitions.html", terms=definitions())
    yield from renderer.assets().items()


def definitions() -> list[tuple[str, str, str]]:
    """(anchor, title, text) of everything that the pages show by name."""
    found = [(m.name, f"{m.title}, {m.unit}" if m.unit else m.title, m.definition) for m in METRICS]
    return [
        *found,
        ("lossless", "lossless", LOSSLESS),
        ("worth", "verdict", WORTH),
        ("unconditional", "accepted of all drafts", UNCONDITIONAL),
        ("conditional", "accepted of those tested", CONDITIONAL),
    ]
