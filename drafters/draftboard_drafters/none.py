"""Plain decoding: the drafter that proposes nothing, and so the baseline of every speedup.

The baseline runs through the same loop as every method, so what differs between two arms is the drafting
and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftboard.drafter import NO_WEIGHTS, Card, Draft, Drafter, DraftSampler, Target

CARD = Card(
    label="Plain decoding",
    order=0,
    mechanism="Drafts nothing: every forward of the target yields one token.",
    needs="Nothing.",
    drafting="none",
    training_cost=None,
    claims=(),
    when_to_use="As the reference, and when the batch already fills the processor.",
    serving_name=None,
    baseline=True,
)


class Silent:
    """Proposes the empty draft."""

    taps: tuple[int, ...] = ()
    weights = NO_WEIGHTS
    num_speculative_tokens = 0

    def __init__(self, device: torch.device) -> None:
        self.empty = Draft(torch.empty(0, dtype=torch.int64, device=device))

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Nothing to remember."""

    def propose(self, limit: int) -> Draft:
        """The empty draft."""
        return self.empty

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Nothing to remember."""

    def release(self) -> None:
        """Nothing to forget."""


def build(target: Target, sampler: DraftSampler) -> Drafter:
    """The baseline. It has no options."""
    return Silent(target.device)
