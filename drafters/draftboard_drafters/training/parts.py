"""What training takes from the target: its embedding, head, norms and blocks, and its sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from draftboard.drafter import UserError
from draftboard.measure.loading import cannot_load, identity, read_config, resolve_source
from draftboard_drafters._layers import Geometry, Rope
from draftboard_drafters.checkpoints.token_maps import ids_sha256


@dataclass(frozen=True, slots=True)
class Parts:
    """A Llama-style target's tensors in float32, by transformers' names, and its sizes."""

    id: str
    revision: str | None
    source: str
    """Folder or hub id of its files."""
    tensors: Mapping[str, Tensor]
    geometry: Geometry
    rope: Rope
    layers: int
    vocab_size: int

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""
        return self.tensors["model.embed_tokens.weight"]

    @property
    def head(self) -> Tensor:
        """[V, H]; the embedding, where the target ties them."""
        return self.tensors.get("lm_head.weight", self.embedding)

    @property
    def final_norm(self) -> Tensor:
        """[H]"""
        return self.tensors["model.norm.weight"]

    def block(self, index: int, prefix: str) -> dict[str, Tensor]:
        """Copies of a block's tensors under names that begin with `prefix`."""
        of = f"model.layers.{index}."
        return {
            prefix + name.removeprefix(of): tensor.clone()
            for name, tensor in self.tensors.items()
            if name.startswith(of)
        }


def parts_of(name: str) -> Parts:
    """The parts of the target called `name`, an embedded id, a folder or a hub id. Raises UserError for one
    that cannot be loaded or trained for."""
    source = resolve_source(name)
    read_config(source, None)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise cannot_load(source, error) from error
    id, revision = identity(name, source, model.config, None)
    return parts_of_model(id, source, model, revision)


def parts_of_model(id: str, source: str, model: Any, revision: str | None = None) -> Parts:
    """The parts of a transformers causal LM. Raises UserError for one whose blocks are not Llama's."""
    config = model.config.get_text_config()
    _check_blocks(id, config, model)
    heads = int(config.num_attention_heads)
    geometry = Geometry(
        hidden_size=int(config.hidden_size),
        intermediate_size=int(config.intermediate_size),
        heads=heads,
        kv_heads=int(config.num_key_value_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        eps=float(config.rms_norm_eps),
        qk_norm=False,
    )
    rope = {"rope_type": "default", **config.rope_parameters}
    tensors = {key: value.detach().float() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return Parts(
        id,
        revision,
        source,
        tensors,
        geometry,
        Rope(rope, int(config.max_position_embeddings)),
        int(config.num_hidden_layers),
        int(config.vocab_size),
    )


def _check_blocks(id: str, config: Any, model: Any) -> None:
    names = [name for name, _ in model.named_parameters()]
    odd = [name for name in names if name.endswith(".bias") or "q_norm" in name or "k_norm" in name]
    if odd or config.hidden_act != "silu" or not any(name.endswith("mlp.gate_proj.weight") for name in names):
        what = f"tensor {odd[0]!r}" if odd else f"activation {config.hidden_act!r} or another MLP"
        raise UserError(
            f"target {id!r} cannot be trained for: its blocks are not plain Llama blocks ({what});"
            " use published drafters for it"
        )


@dataclass(frozen=True, slots=True)
class Words:
    """The reduced vocabulary of a drafter: target ids, ascending, and the rows of the target's head."""

    ids: Tensor
    """int64 [Vd]"""
    known: Tensor
    """bool [V]"""
    head: Tensor
    """[Vd, H]"""
    present: Tensor
    """bool [V]: ids that the texts contain, prompts and replies"""

    def sha256(self) -> str:
        """Of the ids."""
        return ids_sha256(self.ids)

    @property
    def offsets(self) -> Tensor:
        """d2t: target id minus draft id, int64 [Vd]."""
        return self.ids - torch.arange(len(self.ids))


def most_frequent(counts: Tensor, size: int, parts: Parts, present: Tensor) -> Words:
    """The `size` ids that the target's replies use most; `counts` int64 [V], `present` as in `Words`."""
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    known = torch.zeros(parts.vocab_size, dtype=torch.bool)
    known[ids] = True
    return Words(ids, known, parts.head[ids].clone(), present)


def count(replies: Iterable[Tensor], vocab_size: int) -> Tensor:
    """How often each id occurs, int64 [V]."""
    total = torch.zeros(vocab_size, dtype=torch.int64)
    for reply in replies:
        total += torch.bincount(reply.long(), minlength=vocab_size)
    return total
