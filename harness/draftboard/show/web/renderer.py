"""Templates filled with data; whatever comes from a record is escaped."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftboard.errors import UserError
from draftboard.judge.metrics import BY_NAME
from draftboard.show import words
from draftboard.show.web.documents import DOCUMENTS

ROOMS = ("record", "judge", "show")
"""What a page is made by, apart from `site/` and the documents."""

NAVIGATION = {
    "index.html": "Leaderboard",
    "trends.html": "Trends",
    "definitions.html": "Definitions",
    **{one.path: one.menu for one in DOCUMENTS},
}
"""The site's own pages, in the order of its menu."""


def _shown(value: Any) -> Any:
    """Text from a record with nothing invisible in it; what is HTML already stays."""
    return words.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


class Renderer:
    """The templates of the checkout at `root`. Raises UserError when there are none."""

    def __init__(self, root: Path, base_url: str = "") -> None:
        self.root, self.base_url = root, base_url.rstrip("/")
        self.folder = root / "site"
        if not (self.folder / "templates" / "index.html.j2").is_file():
            raise UserError(f"no site/templates in {root}; run in the checkout or point --root at it")

    @cached_property
    def _templates(self) -> Environment:
        made = Environment(
            loader=FileSystemLoader(self.folder / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        made.globals.update(dash=words.DASH, navigation=NAVIGATION, metrics=BY_NAME)
        return made

    def page(self, template: str, path: str, **data: Any) -> str:
        """A page that will lie at `path` below the site's folder."""
        up = "../" * path.count("/")
        address = f"{self.base_url}/{path}" if self.base_url else ""
        return self._templates.get_template(template).render(up=up, path=path, address=address, **data)

    def assets(self) -> dict[str, str]:
        """The files that pages refer to."""
        folder = self.folder / "static"
        return {f"static/{file.name}": file.read_text("utf-8") for file in sorted(folder.iterdir())}

    @cached_property
    def stamp(self) -> str:
        """Changes with whatever decides how a page is made of its records."""
        package = Path(__file__).resolve().parents[2]
        files = [file for room in ROOMS for file in sorted((package / room).rglob("*.py"))]
        files += [file for file in sorted(self.folder.rglob("*.*")) if "public" not in file.parts]
        files += sorted((package.parent / "published").glob("*.toml"))
        files += [file for file in sorted((self.root / "tasks").rglob("*")) if file.is_file()]
        found = hashlib.sha256(self.base_url.encode())
        for file in files:
            found.update(file.name.encode() + file.read_bytes())
        return found.hexdigest()
