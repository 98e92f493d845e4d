"""An arm's replies, token by token: whose each token was, what was guessed in vain, what a round cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup, escape

from draftboard.record.records import Arm, Trace
from draftboard.show import words
from draftboard.show.reply import PLACES, TextRound, piece_text, text_rounds
from draftboard.show.web import charts
from draftboard.show.web.asked import Asked


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: an anchor, words, what was asked (empty where that is not known), the picture of its rounds
    and its text, both texts as HTML."""

    id: str
    title: str
    facts: str
    asked: Markup
    strip: Markup
    text: Markup


def replies(arm: Arm, prompts: Asked) -> tuple[Reply, ...]:
    """Every reply of an arm, with what was asked where `prompts` has it."""
    return tuple(_reply(f"r{index}", trace, arm, prompts) for index, trace in enumerate(arm.traces))


def links(arm: Arm, page: str) -> dict[str, str]:
    """Where the first reply to each prompt is shown."""
    found: dict[str, str] = {}
    for index, trace in enumerate(arm.traces):
        found.setdefault(trace.prompt_id, f"{page}#r{index}")
    return found


def shows(arm: Arm) -> bool:
    """Whether its replies are worth a page: plain decoding's rounds are all alike."""
    return any(t.rounds is None or any(t.rounds.proposed) for t in arm.traces)


def depth(arm: Arm) -> int:
    """The most guesses accepted in one round, as far as colours go."""
    rounds = (count for t in arm.traces if t.rounds is not None for count in t.rounds.accepted)
    return min(max(rounds, default=0), len(PLACES))


def _reply(anchor: str, trace: Trace, arm: Arm, prompts: Asked) -> Reply:
    repeat = f", repeat {trace.repeat + 1}" if trace.repeat else ""
    title = f"{trace.prompt_id}, turn {trace.turn + 1}{repeat}"
    turns = prompts.get(trace.prompt_id, ())
    question = _plain(turns[trace.turn]) if 0 <= trace.turn < len(turns) else Markup()
    if trace.rounds is None:
        text = _plain("".join(trace.pieces))
        return Reply(anchor, title, trace.rounds_missing or "", question, Markup(), text)
    found = text_rounds(trace, arm.guess_pieces)
    strip = charts.round_strip(trace.rounds) if found else Markup()
    text = Markup("".join(_text(trace, found)))
    return Reply(anchor, title, _facts(trace, found), question, strip, text)


def _plain(text: str) -> Markup:
    return Markup(escape(piece_text(text)))


def _facts(trace: Trace, found: Sequence[TextRound]) -> str:
    length = words.figure(trace.emitted / len(found) if found else None, "tokens/round")
    return (
        f"{len(trace.token_ids)} tokens in {len(found)} rounds, {length} a round, decoded in "
        f"{trace.decode_ms:.0f} ms after {trace.prefill_ms:.0f} ms of prefill; "
        f"stopped by {'a stop token' if trace.stop == 'stop_token' else 'the length limit'}"
    )


def _text(trace: Trace, found: Sequence[TextRound]) -> Iterator[str]:
    """HTML, a `span.round` for each round. What is said of a round is its label, which the style shows."""
    yield _token("own", trace.pieces[0]) if trace.pieces else ""
    for number, one in enumerate(found, start=1):
        yield f'<span class="round" role="group" tabindex="0" aria-label="{escape(_say(number, one))}">'
        for place, piece in enumerate(one.accepted):
            yield _token(f"g{place % len(PLACES)}", piece)
        yield _token("own", one.own) if one.own is not None else ""
        yield "</span>"


@lru_cache(maxsize=2**16)
def _token(class_: str, piece: str) -> str:
    return f'<span class="{class_}">{escape(piece_text(piece))}</span>'


def _say(number: int, one: TextRound) -> str:
    facts = one.facts
    missed = f", rejected: {words.visible(' | '.join(one.rejected))}" if one.rejected else ""
    times = f"draft {facts.draft_ms:.2f}, verify {facts.verify_ms:.2f}, commit {facts.commit_ms:.2f} ms"
    return f"round {number}: {facts.accepted} of {facts.proposed} guesses accepted{missed}; {times}"
