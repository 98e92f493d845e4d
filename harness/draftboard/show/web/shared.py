"""The pages made from all runs together, and the files they refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from draftboard.judge.lossless import DEFINITION as LOSSLESS
from draftboard.judge.metrics import METRICS
from draftboard.judge.positions import CONDITIONAL, UNCONDITIONAL
from draftboard.judge.worth import DEFINITION as WORTH
from draftboard.record.history import Ruled
from draftboard.show.collect import RunRows
from draftboard.show.export import FIELDS, records
from draftboard.show.web import badges, documents, hardware
from draftboard.show.web.boards import make_front
from draftboard.show.web.documents import DOCUMENTS
from draftboard.show.web.page import PLOTTED
from draftboard.show.web.renderer import Renderer
from draftboard.show.web.rulings import make_rulings
from draftboard.show.web.trends import make_trends

TAKEN = (*FIELDS[: FIELDS.index("run") + 1], "arm", "origin", "indicative", "reasons", "error")
"""Fields of a row that can be taken away from the front page; `draftboard results` gives all."""


def pages(
    renderer: Renderer,
    found: Sequence[RunRows],
    accepted: Collection[tuple[str, str]],
    history: Sequence[Ruled],
) -> Iterator[tuple[str, str]]:
    """Paths and texts. `accepted` has run and arm of what changes are compared with, `history` what the gate
    said, oldest first."""
    front = make_front(found)
    rows = [[record[name] for name in TAKEN] for record in records(front.records)]
    data = {"fields": TAKEN, "rows": rows}
    terms = {name: text for name, _, text in definitions()}
    yield "index.html", renderer.page("index.html.j2", "index.html", front=front, data=data, terms=terms)
    yield "definitions.html", renderer.page("definitions.html.j2", "definitions.html", terms=definitions())
    yield "trends.html", _trends(renderer, found, accepted, history)
    for one in DOCUMENTS:
        text = documents.render(one, renderer.root)
        yield one.path, renderer.page("document.html.j2", one.path, title=one.title, text=text)
    yield from badges.badges([row for one in found for row in one.rows], front.records)
    yield from renderer.assets().items()


def _trends(
    renderer: Renderer,
    found: Sequence[RunRows],
    accepted: Collection[tuple[str, str]],
    history: Sequence[Ruled],
) -> str:
    made, said = make_trends(found, accepted), make_rulings(history)
    times = sum(len(trend.lines) for trend in made)
    once = sum(not row.baseline for one in found for row in one.rows) - times
    more = {"trends": made, "rulings": said, "once": once, "plotted": PLOTTED}
    return renderer.page("trends.html.j2", "trends.html", **more)


def definitions() -> list[tuple[str, str, str]]:
    """(anchor, title, text) of everything that the pages show by name."""
    found = [(m.name, f"{m.title}, {m.unit}" if m.unit else m.title, m.definition) for m in METRICS]
    return [
        *found,
        ("gpu_busy", "GPU busy, %", hardware.GPU_BUSY),
        ("energy", "J/token", hardware.ENERGY),
        ("weights", "added weights", hardware.WEIGHTS),
        ("lossless", "lossless", LOSSLESS),
        ("worth", "verdict", WORTH),
        ("unconditional", "accepted of all drafts", UNCONDITIONAL),
        ("conditional", "accepted of those tested", CONDITIONAL),
    ]
