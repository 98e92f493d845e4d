"""DFlash's recipe (arXiv 2602.06036): cross-entropy at every slot of blocks at drawn anchors, later slots
counting less. The label is the target's law, not its word; embedding and head are the target's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
SETTINGS = Settings(tokens=3_200_000, rate=8e-4, rows=768)
AFTER: tuple[str, ...] = ()


class DFlashRecipe:
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
    ) -> None:
        """`mask_id` is an id that texts do not contain; see `mask_of` for the one that is taken."""
        self.k, self.parts, self.words = k, parts, words
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
        )

    def initial(self, seed: int) -> dict[str, Tensor]:
        """From the target's blocks; see `Slots.initial`."""
        return self.slots.initial(seed)

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss and hits of the drawn blocks."""
        block = self.slots.block(parameters, batch, seed)
        logits = F.linear(block.states, self.words.head).float()
        right = logits.detach().argmax(-1) == block.laws.argmax(-1)
        loss = mean(cross_entropy(logits, block.laws), block.weights)
        return Outcome(loss, chains_of(right, block))

    def ship(self, parameters: Mapping[str, Tensor], folder: Path) -> None:
        """Writes the drafter."""
        export(self.checkpoint(parameters), folder, self.layout)

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The trained parameters of a shipped drafter."""
        return read_back(folder)

    def checkpoint(self, parameters: Mapping[str, Tensor]) -> Checkpoint:
        """The drafter in bfloat16."""
        return self.slots.checkpoint("dflash", self.layout, self.slots.conventions, parameters)


def make(
    parts: Parts, words: Words, taps: tuple[int, ...], before: Mapping[str, Mapping[str, Tensor]]
) -> Recipe:
    """The recipe as shipped."""
    return DFlashRecipe(parts, words, taps)
