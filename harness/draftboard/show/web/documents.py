"""Pages made of the project's own documents, so that there is one text and not two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from draftboard.errors import UserError


@dataclass(frozen=True, slots=True)
class Document:
    """A page and its name in the menu. Its parts are files, or sections of files, named by their heading."""

    path: str
    menu: str
    title: str
    parts: tuple[tuple[str, str | None], ...]


DOCUMENTS = (
    Document("method.html", "Method", "How it is measured", (("harness/README.md", None),)),
    Document(
        "limits.html",
        "Limits",
        "Limits and bias",
        (("README.md", "Limits"), ("harness/README.md", "Where this harness leans")),
    ),
    Document(
        "add-a-drafter.html",
        "Add a drafter",
        "Add a drafter, or a task",
        (
            ("README.md", "Add a drafter"),
            ("drafters/README.md", "Write one"),
            ("drafters/README.md", "Check it"),
            ("README.md", "Add a task"),
        ),
    ),
    Document(
        "submit.html",
        "Submit",
        "Your own results",
        (("results/README.md", "Submit results"), ("results/README.md", "Reproduce a row")),
    ),
)

_WHOLE = {file: page.path for page in DOCUMENTS for file, heading in page.parts if heading is None}


def render(document: Document, root: Path) -> Markup:
    """The page's text as HTML. Links within the checkout lead to the page of that document, where there is
    one, and are plain words otherwise. Raises UserError for a file or a heading that is not there."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens: list[Token] = []
    for file, heading in document.parts:
        found = markdown.parse(_read(root / file))
        part = _untitled(found) if heading is None else _section(found, heading, file)
        _relink(part, str(Path(file).parent))
        tokens += part
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        raise UserError(f"{file}: a page of the site is made of this document and it is not there") from None


def _section(tokens: Sequence[Token], heading: str, file: str) -> list[Token]:
    """The tokens from a heading to the next of its rank."""
    starts = [i for i, token in enumerate(tokens) if token.type == "heading_open"]
    for start in starts:
        if tokens[start + 1].content == heading:
            rank = tokens[start].tag
            end = next((i for i in starts if i > start and tokens[i].tag <= rank), len(tokens))
            return list(tokens[start:end])
    raise UserError(f"{file}: has no heading {heading!r}, of which a page of the site is made")


def _untitled(tokens: Sequence[Token]) -> list[Token]:
    """The tokens without the document's title, for the page has its own."""
    title = bool(tokens) and tokens[0].type == "heading_open" and tokens[0].tag == "h1"
    return list(tokens[3 if title else 0 :])


def _relink(tokens: Sequence[Token], folder: str) -> None:
    for token in tokens:
        if token.children is not None:
            token.children = list(_links(token.children, folder))


def _links(children: Sequence[Token], folder: str) -> Iterator[Token]:
    kept: list[bool] = []
    for token in children:
        if token.type == "link_open":
            href = str(token.attrs["href"])
            target = (
                href if href.startswith("https:") else _WHOLE.get(normpath(f"{folder}/{href.split('#')[0]}"))
            )
            kept.append(target is not None)
            token.attrs["href"] = target or ""
        keep = kept.pop() if token.type == "link_close" else token.type != "link_open" or kept[-1]
        if keep:
            yield token
