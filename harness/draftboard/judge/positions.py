"""Acceptance by the position of a guess in its draft, in the two ways in which it is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftboard.record.records import Round, Trace

UNCONDITIONAL = (
    "Of the rounds with a proposal, the share in which the guess at this position was committed. A guess "
    "after a miss, or one that was never made, counts as not committed."
)
CONDITIONAL = (
    "Of the guesses at this position that were put to the test, the share that was committed: all before it "
    "had been, and no stop token had ended the reply."
)


@dataclass(frozen=True, slots=True)
class Position:
    """Acceptance of the guess at one place of a draft; `position` counts from 1."""

    position: int
    proposed: int
    tested: int
    accepted: int
    unconditional: float | None
    conditional: float | None


def by_position(replies: Sequence[Trace]) -> tuple[Position, ...]:
    """One entry per position up to the longest draft; empty when nothing was proposed or shown."""
    rounds = [r for trace in replies for r in trace.rounds or () if r.proposed]
    longest = max((r.proposed for r in rounds), default=0)
    return tuple(_position(place, rounds) for place in range(1, longest + 1))


def _position(place: int, rounds: Sequence[Round]) -> Position:
    proposed = sum(r.proposed >= place for r in rounds)
    tested = sum(_tested(place, r) for r in rounds)
    accepted = sum(r.accepted >= place for r in rounds)
    conditional = accepted / tested if tested else None
    return Position(place, proposed, tested, accepted, accepted / len(rounds), conditional)


def _tested(place: int, r: Round) -> bool:
    cut_at_a_guess = r.emitted == r.accepted
    reached = r.accepted if cut_at_a_guess else r.accepted + 1
    return place <= min(r.proposed, reached)
