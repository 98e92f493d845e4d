"""A badge for each row of the front page: a picture, and the data from which shields.io draws one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from draftboard.judge.summary import Row
from draftboard.show import settings, words
from draftboard.show.web.svg import tag

COLOURS: dict[words.Tone, str] = {"gain": "#1a6b3a", "loss": "#a8321f", "bad": "#a8321f"}
PLAIN = "#565e67"


def path(row: Row) -> str:
    """Where the badge of a row lies, without its ending."""
    return f"badges/{settings.key(row)}-{row.arm}"


def badges(rows: Sequence[Row], chosen: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Paths and texts, one badge for each arm of a table; a row that the table shows comes before others."""
    for row in {path(row): row for row in (*rows, *chosen)}.values():
        label, message, colour = f"{words.arm_name(row)} on {row.task}", message_of(row), _colour(row)
        data = {"schemaVersion": 1, "label": label, "message": message, "color": colour.removeprefix("#")}
        yield f"{path(row)}.json", json.dumps(data, ensure_ascii=False) + "\n"
        yield f"{path(row)}.svg", draw(words.visible(label), message, colour) + "\n"


def message_of(row: Row) -> str:
    """What a badge says: nothing that the table would not say."""
    if row.error:
        return "failed"
    if row.lossless == "bug":
        return "not lossless"
    stamp = "indicative " if row.indicative else "" if row.valid else "not valid "
    interval = words.interval(row.speedup_lo, row.speedup_hi)
    return f"{stamp}{words.speedup_words(row)}" + (f" ({interval})" if interval else "")


def _colour(row: Row) -> str:
    if row.error or row.lossless == "bug":
        return COLOURS["bad"]
    return COLOURS.get(words.speedup_tone(row), PLAIN) if row.valid else PLAIN


def draw(label: str, message: str, colour: str) -> str:
    """A flat badge; the width of a letter is reckoned, since no font is at hand."""
    left, right = _width(label), _width(message)
    parts = (
        tag("title", f"{label}: {message}"),
        tag("rect", width=left, height=20, fill="#3b4148"),
        tag("rect", x=left, width=right, height=20, fill=colour),
        *(
            tag("text", words_, x=at, y=14, text_anchor="middle", textLength=width - 12)
            for words_, at, width in ((label, left / 2, left), (message, left + right / 2, right))
        ),
    )
    group = tag("g", *parts, fill="#fff", font_family="Verdana,DejaVu Sans,sans-serif", font_size=11)
    said = f"{label}: {message}"
    size = {"width": float(left + right), "height": 20.0}
    return tag("svg", group, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=said, **size)


def _width(text: str) -> int:
    return 12 + round(6.6 * len(text))
