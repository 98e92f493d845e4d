"""Names in Markdown are read back as the text they are, in the list of results and in a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from draftboard.judge.findings import Limits
from draftboard.judge.gate import Trial
from draftboard.judge.pairing import Run
from draftboard.judge.summary import rows
from draftboard.show import comparison, tables, words
from record_factory import GUESSING
from sides import side

NAMES = (
    "ends in a backslash\\",
    "a\\|b|c",
    "[here](http://e.org) ![x](y)",
    "`code` ``` fence",
    "two\nlines\r\nand \u2028 more",
    "_low_ *star* __both__ ~~gone~~",
    "<b>bold</b> &amp; &#42; <!-- no -->",
    "\\`\\[\\\\",
    "\x1b[31m\u202e\x00",
)


def results(name: str) -> str:
    run, arms = side(1)
    return tables.markdown(rows(run, [arms[0], replace(arms[1], card=replace(GUESSING, label=name))]))


def compared(name: str) -> str:
    def named(run: Run) -> Run:
        return run[0], [run[1][0], replace(run[1][1], drafter=name, k=None)]

    ruling = Trial(Limits(), one_machine=True).add([named(side(1))], [named(side(2))])
    return comparison.markdown(ruling.comparison)


def inline(text: str) -> list[Token]:
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [token for token in found if token.type == "inline"]


def cells(text: str) -> list[tuple[str, set[str]]]:
    """Of each line or cell its text as a reader sees it, and the kinds of markup in it."""
    found = []
    for token in inline(text):
        parts = token.children or []
        found.append(("".join(part.content for part in parts), {part.type for part in parts}))
    return found


@pytest.mark.parametrize("write", [results, compared])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_and_stays_in_its_cell(write: Callable[[str], str], name: str) -> None:
    calm, hostile = cells(write("calm")), cells(write(name))
    assert len(calm) == len(hostile)
    for before, after in zip(calm, hostile, strict=True):
        assert after[0].replace(words.visible(name), "calm") == before[0]
        assert after[1] - {"text_special"} <= before[1]
    assert any(words.visible(name) in text for text, _ in hostile)
