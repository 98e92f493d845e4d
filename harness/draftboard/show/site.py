"""The page: one HTML file without outside requests, and the check that its figures are the records'."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from draftboard.errors import UserError
from draftboard.record.store import Store
from draftboard.show.boards import make_page
from draftboard.show.collect import read_all
from draftboard.show.page import Page, facts

PAGE_FILE = "index.html"
TEMPLATE = "index.html.j2"
STYLE = Path("static") / "style.css"


def build(store: Store, out: Path, templates: Path) -> Path:
    """Renders all runs of `store` into `out` and returns the page's path. `templates` is the folder of the
    templates, beside `static`. Raises UserError when they are not there."""
    if not (templates / TEMPLATE).is_file():
        raise UserError(f"no {TEMPLATE} in {templates}; run in the checkout or point --root at it")
    out.mkdir(parents=True, exist_ok=True)
    page, temporary = out / PAGE_FILE, out / f".{PAGE_FILE}.tmp"
    temporary.write_text(render(make_page(read_all(store)), templates), encoding="utf-8")
    temporary.replace(page)
    return page


def render(page: Page, templates: Path) -> str:
    """The page as HTML; whatever comes from a record is escaped."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (templates.parent / STYLE).read_text(encoding="utf-8")
    return environment.get_template(TEMPLATE).render(page=page, style=style)


def verify(store: Store, out: Path) -> str:
    """One line on a page whose every fact equals what `store` gives now. Raises UserError at the first that
    differs, is missing or comes from nowhere."""
    page = out / PAGE_FILE if out.is_dir() else out
    if not page.is_file():
        raise UserError(f"{page}: no such page; build it with: draftboard site")
    shown = _read(page.read_text(encoding="utf-8"))
    expected = {fact.key: (fact.value, fact.text) for fact in facts(make_page(read_all(store)))}
    for key, value, text in shown:
        if key not in expected:
            raise UserError(f"{page}: {key} shows {text!r}, which no record gives; build the page again")
        if (value, text.split()) != (expected[key][0], expected[key][1].split()):
            difference = (
                f"shows {text!r} ({value}), the records give {expected[key][1]!r} ({expected[key][0]})"
            )
            raise UserError(f"{page}: {key} {difference}; build the page again")
    absent = sorted(set(expected) - {key for key, _, _ in shown})
    if absent:
        raise UserError(f"{page}: {absent[0]} is missing; build the page again")
    return f"{page}: all {len(expected)} facts equal the records"


def _read(html: str) -> list[tuple[str, str, str]]:
    """(key, value, text) of every marked element, in the order of the page."""
    reader = _FactReader()
    reader.feed(html)
    reader.close()
    return reader.found


class _FactReader(HTMLParser):
    """Collects the elements that carry `data-key`; they hold text only."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "data-key" in given:
            self.found.append((given["data-key"] or "", given.get("data-value") or "", ""))
            self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open:
            key, value, text = self.found[-1]
            self.found[-1] = (key, value, text + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = None
