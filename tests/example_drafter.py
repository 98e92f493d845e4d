"""A worked example of a drafter in one file: a table of which token followed which in the text so far.

The guess after token t is drawn from q(x | t), proportional to how often x has followed t plus a little for
every other token; at temperature 0 it is the most frequent follower.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from draftboard.drafter import NO_WEIGHTS, Card, Draft, Drafter, DraftSampler, Target, UserError

CARD = Card(
    label="Bigram counts",
    order=100,
    mechanism="Counts which token followed which, and walks along the most frequent followers.",
    needs="Nothing but token ids.",
    drafting="lookup",
    training_cost=None,
    claims=(),
    when_to_use="To see how a drafter is written.",
    serving_name=None,
)


class Bigrams:
    """The counts of one text."""

    taps: tuple[int, ...] = ()
    weights = NO_WEIGHTS

    def __init__(self, target: Target, sampler: DraftSampler, k: int, smoothing: float) -> None:
        self.target, self.sampler, self.num_speculative_tokens, self.smoothing = target, sampler, k, smoothing
        self.release()

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Counts the prompt and the first reply token."""
        self.release()
        self._count(tokens)

    def propose(self, limit: int) -> Draft:
        """Draws each guess from what followed the one before it."""
        last, tokens, laws = self.last, [], []
        for _ in range(min(limit, self.num_speculative_tokens)):
            counts = self.followers.get(int(last), self.nothing)
            last, law = self.sampler.draw(torch.log(counts + self.smoothing)[None])
            tokens.append(last)
            laws.append(law)
        if not tokens:
            return Draft(self.last[:0])
        certain = self.sampler.greedy
        return Draft(
            torch.cat(tokens), None if certain else torch.cat([law for law in laws if law is not None])
        )

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Counts what was committed. Guesses were never counted, so there is nothing to roll back."""
        self._count(torch.cat([self.last, tokens]))

    def release(self) -> None:
        """Forgets all counts."""
        self.followers: dict[int, Tensor] = {}
        self.nothing = torch.zeros(self.target.vocab_size, device=self.target.device)
        self.last = torch.empty(0, dtype=torch.int64, device=self.target.device)

    def _count(self, tokens: Tensor) -> None:
        ids = tokens.tolist()
        for token, follower in pairwise(ids):
            self.followers.setdefault(token, self.nothing.clone())[follower] += 1
        self.last = tokens[-1:]


def build(
    target: Target, sampler: DraftSampler, *, num_speculative_tokens: int = 4, smoothing: float = 0.01
) -> Drafter:
    """A drafter from the text itself; `smoothing` is the count of a token that never followed."""
    if smoothing <= 0:
        raise UserError(f"smoothing must be above 0, found {smoothing}")
    return Bigrams(target, sampler, num_speculative_tokens, smoothing)
