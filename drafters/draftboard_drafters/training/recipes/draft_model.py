"""The external draft's recipe: a small language model of its own, distilled from the target
(cross-entropy to the target's law at every token of the texts).

Its embedding starts as the target's, turned onto its first principal directions, and is tied to its head.
Rows of the head that a step's labels do not name would drift up unseen, so each step's loss reads the most
frequent tokens and a fresh draw of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from draftboard.measure.loading import load_tokenizer
from draftboard_drafters.checkpoints.cards import WEIGHTS
from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.loop import Settings
from draftboard_drafters.training.objective import (
    Outcome,
    Parameters,
    Recipe,
    cross_entropy,
    label_weights,
    laws,
    mean,
)
from draftboard_drafters.training.parts import Parts, Words

WORDS = 8192
SETTINGS = Settings(tokens=2_200_000, rate=2e-3, rows=768)
AFTER: tuple[str, ...] = ()


class DraftModelRecipe:
    """See the module's docstring."""

    def __init__(
        self,
        parts: Parts,
        words: Words,
        taps: tuple[int, ...],
        *,
        k: int = 3,
        width: int = 160,
        layers: int = 3,
        others: int = 2048,
        prompt_weight: float = 0.5,
    ) -> None:
        """A Llama of this width (at most the target's) and depth; `others` rare tokens join each step's."""
        self.parts, self.words, self.k, self.others, self.prompt_weight = (
            parts,
            words,
            k,
            others,
            prompt_weight,
        )
        width = min(width, parts.geometry.hidden_size // 32 * 32)
        self.config = LlamaConfig(
            vocab_size=parts.vocab_size,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=parts.rope.max_position_embeddings,
            rope_parameters=dict(parts.rope.parameters),
            rms_norm_eps=parts.geometry.eps,
            tie_word_embeddings=True,
        )
        self.model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
        self.rare = (~words.known).nonzero()[:, 0]

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Random layers, and the target's embedding on its principal directions."""
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
        start = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        start["model.embed_tokens.weight"] = _principal(self.parts.embedding, self.config.hidden_size)
        return start

    def outcome(self, parameters: Parameters, batch: Batch, seed: int) -> Outcome:
        """Loss at every token, hits of single drafts on true text."""
        dice = torch.Generator().manual_seed(seed)
        drawn = self.rare[torch.randperm(len(self.rare), generator=dice)[: self.others]]
        rows = torch.cat([self.words.ids, drawn])
        hidden = torch.func.functional_call(
            self.model.model, _trunk(parameters), kwargs={"input_ids": batch.ids, "use_cache": False}
        ).last_hidden_state
        weights = batch.weights(self.prompt_weight)
        counts = weights > 0
        logits = F.linear(hidden[counts], parameters["model.embed_tokens.weight"][rows]).float()
        law = laws(batch.states[:, :, -1][counts], self.parts.head[rows])
        right = torch.zeros_like(counts)
        known = self.words.known.clone()
        known[drawn] = True
        said = label_weights(batch, known, self.prompt_weight)[counts] > 0
        right[counts] = (logits.detach().argmax(-1) == law.argmax(-1)) & said
        loss = mean(cross_entropy(logits, law), weights[counts])
        return Outcome(loss, _runs(right, batch.starts(self.k), self.k))

    def ship(self, parameters: Mapping[str, Tensor], folder: Path) -> None:
        """Writes a transformers model and the target's tokenizer."""
        model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
        model.load_state_dict(dict(parameters), strict=False)
        model.tie_weights()
        model.to(torch.bfloat16).save_pretrained(folder)
        load_tokenizer(self.parts.source, None).save_pretrained(folder)
        _compact(folder / "tokenizer.json")

    def shipped(self, folder: Path) -> dict[str, Tensor]:
        """The trained parameters of a shipped drafter."""
        tensors = load_file(folder / WEIGHTS)
        return {name: tensor.float() for name, tensor in tensors.items()}


def make(
    parts: Parts, words: Words, taps: tuple[int, ...], before: Mapping[str, Mapping[str, Tensor]]
) -> Recipe:
    """The recipe as shipped."""
    return DraftModelRecipe(parts, words, taps)


def _compact(file: Path) -> None:
    """The same JSON without its white space, which is more than half of it."""
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole, separators=(",", ":"), ensure_ascii=False))


def _trunk(parameters: Parameters) -> dict[str, Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in parameters.items()}


def _principal(embedding: Tensor, width: int) -> Tensor:
    """[V, width]: rows on the principal directions, scaled to the usual spread of a small model's rows."""
    _, _, directions = torch.linalg.svd(embedding.T @ embedding)
    turned: Tensor = embedding @ directions[:width].T
    return turned.mul_(0.05 / turned.std())


def _runs(right: Tensor, starts: Tensor, k: int) -> Tensor:
    """Hits bool [chains, k] of k tokens in a row, the law at the starting place being the first label."""
    if right.shape[1] < k:
        return right.new_empty(0, k)
    hits: Tensor = right.unfold(1, k, 1)[starts[:, : right.shape[1] - k + 1]]
    return hits
