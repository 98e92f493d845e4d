"""A reply in the terminal, token by token: what was guessed, what was accepted, what each round cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from draftboard.errors import unknown
from draftboard.record.records import Arm, Round, Trace
from draftboard.show import words
from draftboard.show.layout import new_table

OWN, REJECTED = "bold", "strike red"
PLACES = ("green", "cyan", "blue", "magenta", "yellow")
"""Colours of accepted guesses by their place in the draft; they begin again after the last."""


@dataclass(frozen=True, slots=True)
class TextRound:
    """One round of a reply as text. `own` is None when a stop or the cap came before the target's token."""

    facts: Round
    accepted: tuple[str, ...]
    own: str | None
    rejected: tuple[str, ...]


def text_rounds(trace: Trace, guess_pieces: dict[str, str]) -> list[TextRound]:
    """The reply's pieces by round. The first piece comes from the prefill and is in none of them."""
    found, at = [], 1
    for facts in trace.rounds or ():
        accepted = trace.pieces[at : at + facts.accepted]
        own = trace.pieces[at + facts.accepted : at + facts.emitted]
        missed = facts.draft_ids[facts.hits :]
        rejected = tuple(guess_pieces.get(str(token), f"<{token}>") for token in missed)
        found.append(TextRound(facts, accepted, own[0] if own else None, rejected))
        at += facts.emitted
    return found


def reply(arm: Arm, prompt_id: str | None) -> list[RenderableType]:
    """The reply to a prompt, by default the arm's first: coloured, with its legend and its rounds."""
    if not arm.traces:
        return [Text("no reply is recorded", "dim")]
    traces = [trace for trace in arm.traces if prompt_id in (None, trace.prompt_id)]
    if not traces:
        raise unknown("prompt", str(prompt_id), {trace.prompt_id for trace in arm.traces}, f"arm {arm.id}")
    trace = traces[0]
    title = words.visible(f"{trace.prompt_id}, turn {trace.turn + 1}, stopped by {trace.stop}")
    if trace.rounds is None:
        return [
            Rule(Text(title)),
            Text(words.visible("".join(trace.pieces))),
            Text(trace.rounds_missing or ""),
        ]
    found = text_rounds(trace, arm.guess_pieces)
    return [Rule(Text(title)), _legend(found), coloured(trace, found), _round_table(found)]


def _legend(found: Sequence[TextRound]) -> Text:
    deepest = max((len(one.accepted) for one in found), default=0)
    places = [(f"guess {place + 1} ", _place_style(place)) for place in range(deepest)]
    return Text.assemble(("the target's own ", OWN), *places, ("rejected", REJECTED))


def coloured(trace: Trace, found: Sequence[TextRound]) -> Text:
    """The reply, the target's own tokens bold and accepted guesses in the colour of their place."""
    text = Text(piece_text(trace.pieces[0]), OWN)
    for one in found:
        for place, piece in enumerate(one.accepted):
            text.append(piece_text(piece), _place_style(place))
        text.append(piece_text(one.own or ""), OWN)
    return text


def _round_table(found: Sequence[TextRound]) -> Table:
    heads = ("round", "accepted", "own", "rejected", "draft, ms", "verify, ms", "commit, ms")
    table = new_table(heads, "rlllrrr")
    for number, one in enumerate(found, start=1):
        accepted = Text()
        for place, piece in enumerate(one.accepted):
            accepted.append(words.visible(piece), _place_style(place))
        times = (one.facts.draft_ms, one.facts.verify_ms, one.facts.commit_ms)
        own = Text(words.visible(one.own or ""), OWN)
        missed = Text(words.visible("".join(one.rejected)), REJECTED)
        table.add_row(str(number), accepted, own, missed, *(f"{ms:.2f}" for ms in times))
    return table


def piece_text(piece: str) -> str:
    """A token as it is shown: what would not show is spelt out, and a line end still ends the line."""
    return words.visible(piece).replace("⏎", "⏎\n")


def _place_style(place: int) -> str:
    return PLACES[place % len(PLACES)]
