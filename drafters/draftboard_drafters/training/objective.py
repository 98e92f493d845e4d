"""What the losses share: the target's law as label, and what a recipe is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters.training.batches import Batch

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch's loss, and for each chain of drafts from one of the target's own tokens which drafts were
    what the target says: bool [chains, K]."""

    loss: Tensor
    hits: Tensor


class Recipe(Protocol):
    """A method's own part of training."""

    k: int
    """Drafts a chain in training."""

    def initial(self, seed: int) -> dict[str, Tensor]:
        """The trained parameters at their start, float32, by their names in the checkpoint."""

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss and hits of a batch. What is drawn is drawn from `seed`."""

    def ship(self, parameters: Parameters, folder: Path) -> None:
        """Writes the drafter with these parameters in bfloat16, in a published layout."""

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The parameters that `ship` wrote into a folder, float32. Raises UserError for others."""


def laws(states: Tensor, head: Tensor) -> Tensor:
    """The target's law [n, Vd] over a reduced vocabulary, from its final states [n, H], in float32 whatever
    the training computes in: a label that is rounded to bfloat16 ties with its neighbours. No gradient."""
    with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
        return F.linear(states, head).softmax(-1)


def said_laws(states: Tensor, head: Tensor, rest: Tensor) -> Tensor:
    """What the target's whole law gives to the words of a reduced vocabulary, [n, Vd], from its final states
    [n, H]; `rest` [V - Vd, H] are the head's other rows. A row adds up to at most 1. No gradient, float32."""
    with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
        logits, others = F.linear(states, head), F.linear(states, rest)
        whole = torch.logaddexp(logits.logsumexp(-1), others.logsumexp(-1))
        return (logits - whole[:, None]).exp()


class Labels:
    """The target's law after every place that counts, each computed once however many drafts it judges."""

    def __init__(self, batch: Batch, weights: Tensor, head: Tensor) -> None:
        """`weights` [B, T] says how much each place counts, `head` [Vd, H] reads the final states."""
        self.weights, counts = weights, weights > 0
        self.laws = laws(batch.states[:, :, -1][counts], head)
        self.rows = torch.zeros_like(counts, dtype=torch.int64)
        self.rows[counts] = torch.arange(len(self.laws))

    def since(self, start: int) -> tuple[Tensor, Tensor]:
        """From the place `start` on: weights [B, T - start], and the laws [n, Vd] where they are not 0."""
        weights = self.weights[:, start:]
        return weights, self.laws[self.rows[:, start:][weights > 0]]


def cross_entropy(logits: Tensor, law: Tensor) -> Tensor:
    """-sum p log q for each row, q the softmax of the logits: [n]."""
    return -(law * logits.log_softmax(-1)).sum(-1)


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean; 0 where nothing counts."""
    return (values * weights).sum() / weights.sum().clamp_min(1e-6)


def label_weights(batch: Batch, known: Tensor, prompt_weight: float) -> Tensor:
    """[B, T]: how much the law after each place counts as a label; 0 where the token that the target said
    there is outside the reduced vocabulary. After a text's last token nothing was said: its law counts."""
    weights = batch.weights(prompt_weight).clone()
    ended = torch.arange(1, batch.ids.shape[1]) >= batch.lengths[:, None]
    weights[:, :-1] *= known[batch.ids[:, 1:]] | ended
    return weights
