"""Published figures beside ours, in words: both where the setting is the same, else why not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from draftboard.judge.metrics import BY_NAME
from draftboard.judge.published import PublishedMatch, Refusal, find
from draftboard.judge.summary import Row
from draftboard.record.published import Published, load_published
from draftboard.show import words

known = cache(load_published)
"""The published figures of this checkout, read once."""


def remarks(row: Row) -> Iterator[str]:
    """What is published of a row's checkpoint on its task; nothing where that is nothing."""
    found = find(row, known())
    if isinstance(found, Refusal):
        yield from _why_not(found)
    else:
        yield from (_both(match) for match in found)


def _both(match: PublishedMatch) -> str:
    metric, one = BY_NAME[match.metric], match.published
    there, here = (words.figure(value, metric.unit) for value in (one.value, match.ours))
    rest = "".join(f"; {text}" for text in (*match.unlike, one.note) if text)
    return f"published {there} | ours {here}, {metric.title} ({_origin(one)}{rest})"


def _why_not(refusal: Refusal) -> Iterator[str]:
    if refusal.same_subject and (one := refusal.nearest):
        yield f"published {one.value:g} is not comparable: {refusal.reason} ({_origin(one)})"


def _origin(one: Published) -> str:
    mark = ", second-hand" if one.second_hand else ""
    return f"{one.title}, {one.dataset}: {one.source}{mark}"
