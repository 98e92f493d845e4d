"""From token ids to embeddings, and from states to guesses in the target's ids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import DraftSampler, Target
from draftboard.measure.linear import pack


class Vocabulary:
    """Embedding and head of a drafter: its own where it has them, else the target's.

    Vd is the number of rows of its head: V, or fewer where the drafter knows only some of the target's ids.
    """

    def __init__(
        self, target: Target, embedding: Tensor | None, head: Tensor | None, target_ids: Tensor | None
    ) -> None:
        """embedding [V, H] and head [Vd, H] in the target's dtype, or None for the target's own.

        `target_ids` int64 [Vd] are the target's ids of the head's rows; None where they are the same.
        Raises UserError for a target whose embedding cannot be shared.
        """
        if embedding is None:
            target.embed(torch.zeros(1, dtype=torch.int64, device=target.device))  # refuses now or never
        self.size = target.vocab_size
        self.embed = target.embed if embedding is None else lambda ids: F.embedding(ids, embedding)
        self.logits = target.head if head is None else pack(head)
        self.target_ids = target_ids
        self.padding = _padding(target, target_ids)

    def draw(
        self, sampler: DraftSampler, logits: Tensor, numbers: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Guesses for logits [n, Vd]: target ids int64 [n], and the laws float32 [n, V] they were drawn from.

        A law is None at temperature 0; it is 0 at every id that the drafter does not know. `numbers` float64
        [n] are what to draw by, else the sampler takes its own.
        """
        if self.padding is not None:
            logits = logits.masked_fill(self.padding, -torch.inf)
        tokens, laws = sampler.draw(logits) if numbers is None else sampler.draw_by(numbers, logits)
        if self.target_ids is None:
            return tokens, laws
        if laws is not None:
            laws = laws.new_zeros(len(laws), self.size).index_copy_(1, self.target_ids, laws)
        return self.target_ids[tokens], laws


def numbers_for(sampler: DraftSampler, count: int, room: int) -> tuple[Tensor, ...]:
    """What a graph that draws `room` tokens takes to draw `count` of them: float64 [room]; nothing at
    temperature 0. The numbers of the others are 0, so that the stream goes on as if they were not drawn."""
    return () if sampler.greedy else (F.pad(sampler.uniform(count), (0, room - count)),)


def blank_numbers(sampler: DraftSampler, room: int, device: torch.device) -> tuple[Tensor, ...]:
    """Zeros in the place of `numbers_for`."""
    return () if sampler.greedy else (torch.zeros(room, dtype=torch.float64, device=device),)


def _padding(target: Target, target_ids: Tensor | None) -> Tensor | None:
    """bool [Vd]: rows that stand for no token of the target's tokenizer; None where there are none."""
    if target.tokenizer is None:
        return None
    padding = torch.ones(target.vocab_size, dtype=torch.bool, device=target.device)
    padding[[i for i in target.tokenizer.get_vocab().values() if i < target.vocab_size]] = False
    if target_ids is not None:
        padding = padding[target_ids]
    return padding if bool(padding.any()) else None
