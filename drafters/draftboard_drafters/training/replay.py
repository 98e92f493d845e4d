"""Acceptance without the target: a drafter against a greedy reply that is already known.

At temperature 0 the engine's reply does not depend on the drafter, so a round accepts exactly the guesses
that agree with it. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Replayed:
    """One round: guesses made, those that the reply agrees with, their confidence where there is one."""

    proposed: int
    accepted: int
    confidence: tuple[float, ...] | None


@torch.inference_mode()
def replay(drafter: Drafter, prompt: Sequence[int], reply: Sequence[int], states: Tensor) -> list[Replayed]:
    """The rounds of a reply with this drafter.

    `states` [n, L, H] are the target's at the drafter's taps, at every token of prompt and reply but the
    last, in the target's dtype.
    """
    ids, start = torch.tensor([*prompt, *reply]), len(prompt)
    rounds: list[Replayed] = []
    drafter.prefill(ids[: start + 1], states[:start])
    at = start + 1
    while at < len(ids):
        draft = drafter.propose(len(ids) - at - 1)
        accepted = _agreeing(draft.tokens, ids[at:])
        certain = None if draft.confidence is None else tuple(draft.confidence.tolist())
        rounds.append(Replayed(len(draft.tokens), accepted, certain))
        place = slice(at, at + accepted + 1)
        drafter.commit(ids[place], states[at - 1 : at + accepted])
        at = place.stop
    drafter.release()
    return rounds


def acceptance_length(rounds: Sequence[Replayed]) -> float:
    """Tokens a round, the target's own included."""
    return 1 + sum(one.accepted for one in rounds) / len(rounds)


def _agreeing(guesses: Tensor, said: Tensor) -> int:
    """Guesses up to the first that the text does not have. The text's last token is never a guess, since
    the limit keeps room for the target's own."""
    same = guesses == said[: len(guesses)]
    return int(same.long().cumprod(0).sum())
