"""Acceptance by the position of a guess in its draft, in the two ways in which it is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftboard.record.records import Round, Trace

Flags = NDArray[np.bool_]

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
    rounds = [
        (r.proposed, r.accepted, _reached(r)) for trace in replies for r in trace.rounds or () if r.proposed
    ]
    if not rounds:
        return ()
    proposed, accepted, reached = np.array(rounds).T
    tested = np.minimum(proposed, reached)
    return tuple(
        _position(place, proposed >= place, tested >= place, accepted >= place)
        for place in range(1, int(proposed.max()) + 1)
    )


def _position(place: int, proposed: Flags, tested: Flags, accepted: Flags) -> Position:
    """From whether each round had, tested and accepted a guess there."""
    counts = int(proposed.sum()), int(tested.sum()), int(accepted.sum())
    conditional = counts[2] / counts[1] if counts[1] else None
    return Position(place, *counts, counts[2] / len(accepted), conditional)


def _reached(r: Round) -> int:
    """The last position that was put to the test: none is after a miss, or after a stop that was a guess."""
    cut_at_a_guess = r.emitted == r.accepted
    return r.accepted if cut_at_a_guess else r.accepted + 1
