"""DSpark's recipe (arXiv 2607.05147, section 3; weights of its code): on DFlash's block a Markov head read
with the true token before, 0.1 cross-entropy + 0.9 |q - p| to the target's law, and the confidence taught
the share of drafts that would pass, the sum of min(p, q), by binary cross-entropy.

A draft of a reduced vocabulary meets the target's whole law. Where the target said a word that the drafter
does not have, the slot is no label but teaches the confidence, with p as the whole law has it: left out, as
the shipped weights had it, such slots (8 % of those reached in 60 texts that the weights had not seen) were
given a confidence of 0.27 where 0.07 of the drafts pass, and the mean was 0.327 for 0.303. At the other slots
p adds up to 1 within the vocabulary. There it lacks 4 % of the whole law, which leaves 0.006 too much in the
mean; to mend that too would put the full head to every token, over half of a step's arithmetic again.

The backbone may start from a trained DFlash's, which is what it would learn first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters.checkpoints import Checkpoint
from draftboard_drafters.checkpoints.exporting import export
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.loop import Settings
from draftboard_drafters.training.objective import Outcome, Parameters, Recipe, cross_entropy, mean
from draftboard_drafters.training.parts import Parts, Words
from draftboard_drafters.training.shipping import read_back
from draftboard_drafters.training.slots import Slots, chains_of

WORDS = 4096
SETTINGS = Settings(tokens=1_400_000, rate=5e-4, rows=768)
AFTER: tuple[str, ...] = ("dflash",)


class DSparkRecipe:
    """See the module's docstring."""

    layout = "speculators"

    def __init__(
        self,
        parts: Parts,
        words: Words,
        taps: tuple[int, ...],
        *,
        k: int = 4,
        layers: int = 2,
        anchors: int = 96,
        prompt_weight: float = 0.2,
        mask_id: int | None = None,
        rank: int = 24,
        backbone: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`rank` is the Markov head's; `backbone` a trained DFlash's parameters to start from."""
        self.k, self.parts, self.words, self.rank, self.backbone = k, parts, words, rank, backbone
        self.slots = Slots(
            parts,
            words,
            taps,
            k=k,
            layers=layers,
            anchors=anchors,
            decay=4.0,
            prompt_weight=prompt_weight,
            mask_id=mask_id,
            unsaid=True,
        )

    def initial(self, seed: int) -> dict[str, Tensor]:
        """The backbone's start; a Markov head that adds nothing yet; a confidence of one half."""
        dice, hidden = torch.Generator().manual_seed(seed), self.parts.geometry.hidden_size
        start = dict(self.backbone) if self.backbone else self.slots.initial(seed)
        return {
            **start,
            "markov_head.markov_w1.weight": torch.randn(self.parts.vocab_size, self.rank, generator=dice),
            "markov_head.markov_w2.weight": torch.zeros(len(self.words.ids), self.rank),
            "confidence_head.proj.weight": torch.zeros(1, hidden + self.rank),
            "confidence_head.proj.bias": torch.zeros(1),
        }

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss and hits of the drawn blocks."""
        block = self.slots.block(parameters, batch, seed)
        previous = F.embedding(block.previous, parameters["markov_head.markov_w1.weight"])
        logits = F.linear(block.states, self.words.head).float()
        logits = logits + F.linear(previous, parameters["markov_head.markov_w2.weight"])
        guess = logits.softmax(-1)
        apart = (guess - block.laws).abs().sum(-1)
        fit = 0.1 * cross_entropy(logits, block.laws) + 0.9 * apart
        sure = F.linear(
            torch.cat([block.states, previous], dim=-1),
            parameters["confidence_head.proj.weight"],
            parameters["confidence_head.proj.bias"],
        )[:, 0]
        passing = torch.minimum(guess.detach(), block.laws).sum(-1)
        doubt = F.binary_cross_entropy_with_logits(sure, passing, reduction="none")
        right = logits.detach().argmax(-1) == block.laws.argmax(-1)
        loss = mean(fit, block.weights) + mean(doubt, block.reached)
        return Outcome(loss, chains_of(right, block))

    def ship(self, parameters: Mapping[str, Tensor], folder: Path) -> None:
        """Writes the drafter."""
        export(self.checkpoint(parameters), folder, self.layout)

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The trained parameters of a shipped drafter."""
        return read_back(folder)

    def checkpoint(self, parameters: Mapping[str, Tensor]) -> Checkpoint:
        """The drafter in bfloat16."""
        block = dataclasses.replace(
            self.slots.conventions,
            markov="vanilla",
            markov_rank=self.rank,
            confidence="hidden and previous token",
        )
        return self.slots.checkpoint("dspark", self.layout, block, parameters)


def make(
    parts: Parts, words: Words, taps: tuple[int, ...], before: Mapping[str, Mapping[str, Tensor]]
) -> Recipe:
    """The recipe as shipped."""
    return DSparkRecipe(parts, words, taps, backbone=before.get("dflash"))
