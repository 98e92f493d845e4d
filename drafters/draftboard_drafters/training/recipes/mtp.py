"""MTP's recipe, for a module that is trained after its target: FastMTP's recursion (arXiv 2509.18362) with
cross-entropy to the target's law, step s weighted 0.6^s.

Unlike there, a step sees what it will see when it drafts (see `chains`). The full head and the embedding are
the target's and stay as they are; the loss reads the rows of the most frequent tokens alone, and so does a
drafter that is given the token map.
Started from the target's last block; fc undoes the final norm of the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import FINAL_NORM
from draftboard_drafters._layers import Angles
from draftboard_drafters.checkpoints import Checkpoint, Plan, Serial, Spec, serial
from draftboard_drafters.checkpoints.exporting import export
from draftboard_drafters.checkpoints.token_maps import write_token_map
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.blocks import chain_step, norm
from draftboard_drafters.training.chains import Chains
from draftboard_drafters.training.loop import Settings
from draftboard_drafters.training.objective import Outcome, Parameters, Recipe
from draftboard_drafters.training.parts import Parts, Words
from draftboard_drafters.training.shipping import read_back, trained

WORDS = 6144
SETTINGS = Settings(tokens=2_000_000, rate=8e-4, rows=768)
AFTER: tuple[str, ...] = ()


class MtpRecipe:
    """See the module's docstring."""

    layout = "speculators"

    def __init__(
        self, parts: Parts, words: Words, taps: tuple[int, ...], *, k: int = 3, prompt_weight: float = 0.3
    ) -> None:
        """`taps` are those of the stored states; the module reads the last, final one."""
        assert taps[-1] == FINAL_NORM
        self.parts, self.words, self.k = parts, words, k
        self.chains = Chains(parts, words, k=k, decay=0.6, prompt_weight=prompt_weight, normed=True)

    def initial(self, seed: int) -> dict[str, Tensor]:
        """See the module's docstring."""
        hidden, dice = self.parts.geometry.hidden_size, torch.Generator().manual_seed(seed)
        fuse = torch.randn(hidden, 2 * hidden, generator=dice) * 0.02
        fuse[:, hidden:] += torch.diag(1 / self.parts.final_norm.clamp_min(0.1))
        return {
            **self.parts.block(self.parts.layers - 1, "layers.0."),
            "fc.weight": fuse,
            "embedding_norm.weight": torch.ones(hidden),
            "hidden_norm.weight": self.parts.final_norm.clone(),
            "norm.weight": self.parts.final_norm.clone(),
        }

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss and hits of the unrolled steps."""
        return self.chains.outcome(parameters, batch, batch.states[:, :, -1], self._step, self.words.head)

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
                norm(embedded, parameters["embedding_norm.weight"], shape.eps),
                norm(feature, parameters["hidden_norm.weight"], shape.eps),
            ],
            dim=-1,
        )
        x = F.linear(joint, parameters["fc.weight"])
        normed = norm(x, parameters[f"{at}input_layernorm.weight"], shape.eps)
        return chain_step(normed, x, parameters, at, shape, angles, keys, values)

    def ship(self, parameters: Mapping[str, Tensor], folder: Path) -> None:
        """Writes the drafter, and the words that its loss read."""
        export(self.checkpoint(parameters), folder, self.layout)
        write_token_map(folder, self.words.ids.tolist())

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The trained parameters of a shipped drafter."""
        return read_back(folder)

    def checkpoint(self, parameters: Mapping[str, Tensor]) -> Checkpoint:
        """The module in bfloat16; embedding and head are the target's."""
        spec = Spec(
            method="mtp",
            layout=self.layout,
            taps=(FINAL_NORM,),
            k=self.k,
            geometry=self.parts.geometry,
            rope=self.parts.rope,
            layers=1,
            vocab_size=self.parts.vocab_size,
            num_target_layers=self.parts.layers,
            verifier=self.parts.id,
            draft_vocab_size=self.parts.vocab_size,
            serial=Serial(recycle_normed=True),
        )
        return trained(Plan(spec, serial.mtp(spec, serial.PLAIN_KEYS)), parameters)


def make(
    parts: Parts, words: Words, taps: tuple[int, ...], before: Mapping[str, Mapping[str, Tensor]]
) -> Recipe:
    """The recipe as shipped."""
    return MtpRecipe(parts, words, taps)
