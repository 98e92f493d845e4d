"""The fused forward of Llama-style targets: few operators, the cache written in place, and on a CPU the rows
of a round in one call of compiled code.

Same arithmetic as the model's own module (tests compare the two), with the q, k and v products joined
into one, gate and up joined into one, rotary tables made once, and no mask where none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import FINAL_NORM
from draftboard.measure.attention import additive, attend
from draftboard.measure.cache import KVCache
from draftboard.measure.linear import MOST_ROWS, Linear, pack
from draftboard.measure.norm import rms_norm
from draftboard.measure.rotary import rotation
from draftboard.measure.steps import Steps, steps_of

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""transformers model types whose blocks are the one below, up to q/k norms and biases."""

_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary variants whose angles do not depend on the length seen so far."""


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer's weights."""

    input_norm: Tensor
    qkv: Linear
    out: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    post_norm: Tensor
    gate_up: Linear
    down: Linear


def fits(config: Any) -> bool:
    """Whether the fused forward computes what this model's own module computes."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in FAMILIES
        and getattr(config, "quantization_config", None) is None
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in _FIXED_ROPE
    )


class FusedForward:
    """A Llama-style causal LM over its own cache. One sequence, no batch axis."""

    def __init__(self, model: Any, capacity: int) -> None:
        config, trunk = model.config, model.model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.embedding: Tensor = trunk.embed_tokens.weight.detach()
        self.norm: Tensor = trunk.norm.weight.detach()
        self.rotation = rotation(trunk.rotary_emb, self.embedding, capacity)
        self.blocks = [self._block(layer) for layer in trunk.layers]
        self.lm_head = pack(model.lm_head.weight.detach())
        self.cache = KVCache(
            len(self.blocks),
            self.kv_heads,
            self.head_dim,
            capacity,
            self.embedding.dtype,
            self.embedding.device,
        )
        self.steps = steps_of(self)

    @property
    def name(self) -> str:
        """`compiled` where a few rows go through the kernels, else `fused`."""
        return "fused" if self.steps is None else "compiled"

    def embed(self, ids: Tensor) -> Tensor:
        """Embedding rows [n, H] of ids [n]."""
        return F.embedding(ids, self.embedding)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The last norm of raw states [n, H]."""
        return rms_norm(hidden, self.norm, self.eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of normed states [n, H]."""
        return self.lm_head(hidden)

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """Appends ids [m] to the cache. Returns logits [m or 1, V], float32 where they are compiled, and
        features [m, L, H]."""
        place = self.cache.reserve(len(ids))
        if self.steps is not None and place.start and len(ids):
            found = self._steps(self.steps, ids, place.start, taps, last_only)
        else:
            found = self._through(self._attention, ids, place, self._mask(place), taps, last_only)
        self.cache.length = place.stop
        return found

    def _steps(
        self, steps: Steps, ids: Tensor, start: int, taps: tuple[int, ...], last_only: bool
    ) -> tuple[Tensor, Tensor]:
        """As many calls as it takes."""
        parts = [
            steps.run(part, start + MOST_ROWS * index, taps, last_only)
            for index, part in enumerate(torch.split(ids, MOST_ROWS))
        ]
        if len(parts) == 1:
            return parts[0]
        logits, features = zip(*parts, strict=True)
        return logits[-1] if last_only else torch.cat(logits), torch.cat(features)

    def run_at(self, ids: Tensor, places: Tensor, width: int, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """`run` for places that only the device knows, so that one CUDA graph serves them all.

        ids int64 [m] enter the cache at `places` int64 [m], ascending and below `width`. Whatever the places,
        the same operators run over the first `width` cached positions, and a mask hides those that a row may
        not see. `cache.length` stays as it is. Returns logits [m, V] and features [m, L, H].
        """
        columns = torch.arange(width, device=ids.device)
        group = self.heads // self.kv_heads
        mask = additive(columns <= places.unsqueeze(1), group, self.embedding.dtype)
        return self._through(self._attention_at, ids, places, mask, taps, last_only=False)

    def _through(
        self,
        attention: Callable[..., Tensor],
        ids: Tensor,
        place: slice | Tensor,
        mask: Tensor | None,
        taps: tuple[int, ...],
        last_only: bool,
    ) -> tuple[Tensor, Tensor]:
        """Embedding, blocks and head; `attention` is one of the two below, with the place that it takes."""
        angles = self.rotation.at(place)
        x = self.embed(ids)
        states = {0: x}
        for index, block in enumerate(self.blocks):
            x = x + attention(block, self.cache.layers[index], x, place, angles, mask)
            x = x + self.mlp(block, x)
            states[index + 1] = x
        normed = states[FINAL_NORM] = self.final_norm(x if FINAL_NORM in taps or not last_only else x[-1:])
        features = (
            torch.stack([states[tap] for tap in taps], dim=1)
            if taps
            else x.new_empty(len(ids), 0, *x.shape[1:])
        )
        return self.head(normed[-1:] if last_only else normed), features

    def _mask(self, place: slice) -> Tensor | None:
        """Who sees whom, for `attend`; None where every row sees every column."""
        rows = place.stop - place.start
        if rows == 1 or place.start == 0:
            return None
        columns = torch.arange(place.stop, device=self.embedding.device)
        group = self.heads // self.kv_heads
        return additive(columns <= columns[place].unsqueeze(1), group, self.embedding.dtype)

    def _attention(
        self, block: Block, store: Tensor, x: Tensor, place: slice, angles: Tensor, mask: Tensor | None
    ) -> Tensor:
        heads = self.project(block, x, angles)
        query, fresh = torch.split(heads, [self.heads, 2 * self.kv_heads], dim=1)
        store.narrow(1, place.start, len(x)).copy_(fresh.transpose(0, 1))
        keys, values = store.narrow(1, 0, place.stop).chunk(2)
        if place.start == 0 and len(x) > 1:
            return block.out(_prefill_attention(query, keys, values))
        return block.out(attend(query, keys, values, mask))

    def _attention_at(
        self, block: Block, store: Tensor, x: Tensor, places: Tensor, angles: Tensor, mask: Tensor
    ) -> Tensor:
        query, fresh = torch.split(self.project(block, x, angles), [self.heads, 2 * self.kv_heads], dim=1)
        store.index_copy_(1, places, fresh.transpose(0, 1))
        keys, values = store.narrow(1, 0, mask.shape[-1]).chunk(2)
        return block.out(attend(query, keys, values, mask))

    def project(self, block: Block, x: Tensor, angles: Tensor) -> Tensor:
        """Queries, keys and values of states x [n, H], in this order: [n, heads + 2 * kv_heads, head_dim]."""
        turning = self.heads + self.kv_heads
        heads = block.qkv(rms_norm(x, block.input_norm, self.eps)).view(len(x), -1, self.head_dim)
        if block.q_norm is not None and block.k_norm is not None:
            heads[:, : self.heads] = rms_norm(heads[:, : self.heads], block.q_norm, self.eps)
            heads[:, self.heads : turning] = rms_norm(heads[:, self.heads : turning], block.k_norm, self.eps)
        self.rotation.turn_(heads.narrow(1, 0, turning), angles)
        return heads

    def mlp(self, block: Block, x: Tensor) -> Tensor:
        """What a block's MLP adds to states [n, H]."""
        gate, up = block.gate_up(rms_norm(x, block.post_norm, self.eps)).chunk(2, dim=-1)
        return block.down(F.silu(gate).mul_(up))

    def _block(self, layer: Any) -> Block:
        attention, mlp = layer.self_attn, layer.mlp
        return Block(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=self._qkv(attention),
            out=_joined([attention.o_proj]),
            q_norm=self._head_norm(attention, "q_norm"),
            k_norm=self._head_norm(attention, "k_norm"),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=_joined([mlp.gate_proj, mlp.up_proj]),
            down=_joined([mlp.down_proj]),
        )

    def _qkv(self, attention: Any) -> Linear:
        """The three products as one, rows of queries and keys in the rotation's order."""
        turning = torch.arange((self.heads + self.kv_heads) * self.head_dim, device=self.embedding.device)
        order = turning.view(-1, self.head_dim)[:, self.rotation.order].flatten()
        rest = torch.arange(self.kv_heads * self.head_dim, device=order.device) + len(order)
        return _joined([attention.q_proj, attention.k_proj, attention.v_proj], torch.cat([order, rest]))

    def _head_norm(self, attention: Any, name: str) -> Tensor | None:
        norm = getattr(attention, name, None)
        return None if norm is None else norm.weight.detach()[self.rotation.order]


def _prefill_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    seen = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], is_causal=True, enable_gqa=True
    )
    return seen[0].transpose(0, 1).reshape(len(query), -1)


def _joined(parts: list[Any], order: Tensor | None = None) -> Linear:
    """Several products of the same input as one, its rows in `order`."""
    weights = [part.weight.detach() for part in parts]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    zeros = weight.new_zeros
    biases = torch.cat([zeros(len(p.weight)) if p.bias is None else p.bias.detach() for p in parts])
    bias = None if all(part.bias is None for part in parts) else biases
    if order is None:
        return pack(weight, bias)
    return pack(weight[order], None if bias is None else bias[order])
