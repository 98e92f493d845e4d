"""Unrolling a serial drafter in training: EAGLE-3's training-time test (arXiv 2503.01840, section 3.2).

At step s row t stands at position t+s, joins the embedding of token t+s+1 with the state of its own step
s-1 and predicts the law of token t+s+2. It sees the first step's keys up to row t, whose features were the
target's, and those of its own later steps: as when drafting, where features past the committed text are the
drafter's own. The loss of step s counts decay^s. Steps after the first leave out the places that lie in the
prompts of all texts of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters._layers import Angles, Rotary
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.blocks import norm
from draftboard_drafters.training.objective import (
    Labels,
    Outcome,
    Parameters,
    cross_entropy,
    label_weights,
    mean,
)
from draftboard_drafters.training.parts import Parts, Words

Step = Callable[[Parameters, Tensor, Tensor, Angles, list[Tensor], list[Tensor]], Tensor]
"""From embeddings and features [B, n, H] to states [B, n, H]; appends its keys and values to the lists."""

LONGEST = 4096
"""Positions for which angles are kept."""


class Chains:
    """The loss of K unrolled steps."""

    def __init__(
        self, parts: Parts, words: Words, *, k: int, decay: float, prompt_weight: float, normed: bool
    ) -> None:
        """`normed`: the next step's feature is the state after the final norm, not before it."""
        self.parts, self.words, self.k, self.decay = parts, words, k, decay
        self.prompt_weight, self.normed = prompt_weight, normed
        shape = parts.geometry
        self.rotary = Rotary(parts.rope, shape.head_dim, LONGEST, torch.float32, torch.device("cpu"))

    def outcome(
        self, parameters: Parameters, batch: Batch, feature: Tensor, step: Step, head: Tensor
    ) -> Outcome:
        """`feature` [B, T, H] is fused from the target's states; `head` [Vd, H] reads the drafter's."""
        weights = label_weights(batch, self.words.known, self.prompt_weight)
        labels = Labels(batch, weights, self.words.head)
        keys, values, losses, hits = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        length, begin = batch.ids.shape[1], 0
        for s in range(self.k):
            rows = length - 1 - s - begin
            keys, values = _cut(keys, rows, begin), _cut(values, rows, begin)
            embedded = F.embedding(batch.ids[:, begin + 1 + s :], self.parts.embedding)
            angles = self.rotary.at(slice(begin + s, begin + s + rows))
            state = step(parameters, embedded, feature[:, :rows], angles, keys, values)
            normed = norm(state, parameters["norm.weight"], self.parts.geometry.eps)
            feature = normed if self.normed else state
            loss, right = _read(normed, labels, begin + 1 + s, head)
            losses.append(self.decay**s * loss)
            hits.append(F.pad(right, (begin, 0)))
            if s == 0:
                # Chains are drafted from replies alone: of the prompts only the first step's keys are seen.
                begin = max(int(batch.prompts.min()) - 1, 0)
                feature = feature[:, begin:]
        starts = batch.starts(self.k)[:, 1 : 1 + hits[-1].shape[1]]
        chains = [right[:, : starts.shape[1]][starts] for right in hits]
        return Outcome(torch.stack(losses).sum(), torch.stack(chains, dim=-1))


def _cut(held: list[Tensor], rows: int, begin: int) -> list[Tensor]:
    """The first step's keys or values up to the last row, the later steps' own `rows`."""
    return [tensor[:, :, : rows if step else begin + rows] for step, tensor in enumerate(held)]


def _read(normed: Tensor, labels: Labels, start: int, head: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of states [B, n, H] that predict what is said from the place `start` on, and for every
    row whether its best guess is the target's."""
    weights, law = labels.since(start)
    counts = weights > 0
    logits = F.linear(normed[counts], head).float()
    right = torch.zeros_like(counts)
    right[counts] = logits.detach().argmax(-1) == law.argmax(-1)
    return mean(cross_entropy(logits, law), weights[counts]), right
