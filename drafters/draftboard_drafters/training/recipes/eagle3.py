"""EAGLE-3's recipe (arXiv 2503.01840; the loss of its code and of SpecForge's): cross-entropy to the
target's law over the reduced vocabulary, unrolled, step s weighted 0.8^s, no loss on features.

Started from the target: the layer from the block that reads the highest tap, fc as the identity on that tap,
the head is the target's rows and stays so. The embedding's half of the attention begins near zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters._layers import Angles
from draftboard_drafters.checkpoints import Checkpoint, Plan, Serial, Spec, serial
from draftboard_drafters.checkpoints.exporting import export
from draftboard_drafters.checkpoints.record import TARGETS
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.blocks import chain_step, norm
from draftboard_drafters.training.chains import Chains
from draftboard_drafters.training.loop import Settings
from draftboard_drafters.training.objective import Outcome, Parameters, Recipe
from draftboard_drafters.training.parts import Parts, Words
from draftboard_drafters.training.shipping import kept_tensors, read_back, trained

WORDS = 6144
SETTINGS = Settings(tokens=4_800_000, rate=8e-4, rows=768)
AFTER: tuple[str, ...] = ()


class Eagle3Recipe:
    """See the module's docstring."""

    layout = "SpecForge"

    def __init__(
        self, parts: Parts, words: Words, taps: tuple[int, ...], *, k: int = 3, prompt_weight: float = 0.3
    ) -> None:
        """`taps` are those of the stored states; the last is the final one, which only labels."""
        self.parts, self.words, self.taps, self.k = parts, words, taps[:-1], k
        self.chains = Chains(parts, words, k=k, decay=0.8, prompt_weight=prompt_weight, normed=False)

    def initial(self, seed: int) -> dict[str, Tensor]:
        """See the module's docstring."""
        hidden, dice = self.parts.geometry.hidden_size, torch.Generator().manual_seed(seed)
        block = self.parts.block(self.taps[-1], "layers.0.")
        for name in "qkv":
            weight = block[f"layers.0.self_attn.{name}_proj.weight"]
            embedding = torch.randn(weight.shape, generator=dice) * 0.02
            block[f"layers.0.self_attn.{name}_proj.weight"] = torch.cat([embedding, weight], dim=1)
        block["layers.0.hidden_norm.weight"] = block["layers.0.input_layernorm.weight"]
        first = self.parts.block(0, "")["input_layernorm.weight"]
        fuse = torch.randn(hidden, len(self.taps) * hidden, generator=dice) * 1e-3
        fuse[:, -hidden:] += torch.eye(hidden)
        return {
            **block,
            "layers.0.input_layernorm.weight": first,
            "fc.weight": fuse,
            "norm.weight": self.parts.final_norm.clone(),
        }

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss and hits of the unrolled steps."""
        feature = F.linear(batch.states[:, :, :-1].flatten(2), parameters["fc.weight"])
        return self.chains.outcome(parameters, batch, feature, self._step, self.words.head)

    def _step(
        self,
        parameters: Parameters,
        embedded: Tensor,
        feature: Tensor,
        angles: Angles,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        shape, at = self.parts.geometry, "layers.0."
        joint = torch.cat(
            [
                norm(embedded, parameters[f"{at}input_layernorm.weight"], shape.eps),
                norm(feature, parameters[f"{at}hidden_norm.weight"], shape.eps),
            ],
            dim=-1,
        )
        return chain_step(joint, feature, parameters, at, shape, angles, keys, values)

    def ship(self, parameters: Mapping[str, Tensor], folder: Path) -> None:
        """Writes the drafter."""
        export(self.checkpoint(parameters), folder, self.layout)

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The trained parameters of a shipped drafter."""
        return read_back(folder)

    def checkpoint(self, parameters: Mapping[str, Tensor]) -> Checkpoint:
        """The drafter in bfloat16, with its map of the vocabulary."""
        spec = Spec(
            method="eagle3",
            layout=self.layout,
            taps=self.taps,
            k=self.k,
            geometry=self.parts.geometry,
            rope=self.parts.rope,
            layers=1,
            vocab_size=self.parts.vocab_size,
            num_target_layers=self.parts.layers,
            verifier=self.parts.id,
            draft_vocab_size=len(self.words.ids),
            serial=Serial(),
        )
        width = self.parts.geometry.hidden_size
        plan = Plan(spec, serial.eagle3(spec, width, embedding=TARGETS, first="midlayer."))
        return trained(plan, kept_tensors(parameters, self.words))


def make(
    parts: Parts, words: Words, taps: tuple[int, ...], before: Mapping[str, Mapping[str, Tensor]]
) -> Recipe:
    """The recipe as shipped."""
    return Eagle3Recipe(parts, words, taps)
