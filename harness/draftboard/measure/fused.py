"""The fused forward of Llama-style targets: few operators, packed weights, the cache written in place.

Same arithmetic as the model's own module (tests compare the two), with the q, k and v products joined
into one, gate and up joined into one, rotary tables made once, and no mask where none is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import FINAL_NORM
from draftboard.measure.cache import KVCache
from draftboard.measure.linear import Linear, pack

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

    name = "fused"

    def __init__(self, model: Any, capacity: int) -> None:
        config, trunk = model.config, model.model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps, self.width = config.rms_norm_eps, (config.hidden_size,)
        self.embedding: Tensor = trunk.embed_tokens.weight.detach()
        self.norm: Tensor = trunk.norm.weight.detach()
        self.blocks = [_block(layer) for layer in trunk.layers]
        self.lm_head = pack(model.lm_head.weight.detach())
        self.cache = KVCache(
            len(self.blocks),
            self.kv_heads,
            self.head_dim,
            capacity,
            self.embedding.dtype,
            self.embedding.device,
        )
        self.cos, self.sin = _rotary_tables(trunk.rotary_emb, self.embedding, capacity)

    def embed(self, ids: Tensor) -> Tensor:
        """Embedding rows [n, H] of ids [n]."""
        return F.embedding(ids, self.embedding)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The last norm of raw states [n, H]."""
        return F.rms_norm(hidden, self.width, self.norm, self.eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of normed states [n, H]."""
        return self.lm_head(hidden)

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """Appends ids [m] to the cache. Returns logits [m or 1, V] and features [m, L, H]."""
        place = self.cache.reserve(len(ids))
        rotary = self.cos[place].unsqueeze(1), self.sin[place].unsqueeze(1)
        mask = self._mask(place)
        x = self.embed(ids)
        states = {0: x}
        for index, block in enumerate(self.blocks):
            x = x + self._attention(block, index, x, place, rotary, mask)
            x = x + self.mlp(block, x)
            states[index + 1] = x
        self.cache.length = place.stop
        normed = states[FINAL_NORM] = self.final_norm(x if FINAL_NORM in taps or not last_only else x[-1:])
        features = (
            torch.stack([states[tap] for tap in taps], dim=1)
            if taps
            else x.new_empty(len(ids), 0, *x.shape[1:])
        )
        return self.head(normed[-1:] if last_only else normed), features

    def _mask(self, place: slice) -> Tensor | None:
        """Who sees whom, [heads/kv_heads * m, place.stop]; None where every row sees every column."""
        rows = place.stop - place.start
        if rows == 1 or place.start == 0:
            return None
        columns = torch.arange(place.stop, device=self.embedding.device)
        return (columns <= columns[place].unsqueeze(1)).repeat(self.heads // self.kv_heads, 1)

    def _attention(
        self,
        block: Block,
        index: int,
        x: Tensor,
        place: slice,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        query, key, value = self.project(block, x, rotary)
        keys, values = self.cache.keys[index], self.cache.values[index]
        keys[:, place] = key.transpose(0, 1)
        values[:, place] = value.transpose(0, 1)
        if place.start == 0 and len(x) > 1:
            return block.out(self._prefill_attention(query, keys[:, place], values[:, place]))
        return block.out(self._grouped_attention(query, keys[:, : place.stop], values[:, : place.stop], mask))

    def project(self, block: Block, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Queries [n, heads, hd], keys and values [n, kv_heads, hd] of states [n, H]; rotary [n, 1, hd]."""
        turning = self.heads + self.kv_heads
        qkv = block.qkv(F.rms_norm(x, self.width, block.input_norm, self.eps))
        heads = qkv.view(len(x), turning + self.kv_heads, self.head_dim)
        qk = self._rotate(self._qk_norm(block, heads[:, :turning]), *rotary)
        return qk[:, : self.heads], qk[:, self.heads :], heads[:, turning:]

    def _prefill_attention(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        seen = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys[None], values[None], is_causal=True, enable_gqa=True
        )
        return seen[0].transpose(0, 1).reshape(len(query), -1)

    def _grouped_attention(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Query heads that share a KV head become rows of one product, so no key is copied."""
        rows, group = len(query), self.heads // self.kv_heads
        grouped = query.view(rows, self.kv_heads, group, self.head_dim).permute(1, 2, 0, 3)
        grouped = grouped.reshape(1, self.kv_heads, group * rows, self.head_dim)
        seen = F.scaled_dot_product_attention(grouped, keys[None], values[None], attn_mask=mask)
        return seen.view(self.kv_heads, group, rows, self.head_dim).permute(2, 0, 1, 3).reshape(rows, -1)

    def _qk_norm(self, block: Block, qk: Tensor) -> Tensor:
        if block.q_norm is None or block.k_norm is None:
            return qk
        size = (self.head_dim,)
        query = F.rms_norm(qk[:, : self.heads], size, block.q_norm, self.eps)
        return torch.cat([query, F.rms_norm(qk[:, self.heads :], size, block.k_norm, self.eps)], dim=1)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.roll(x, self.head_dim // 2, dims=-1) * sin

    def mlp(self, block: Block, x: Tensor) -> Tensor:
        """What a block's MLP adds to states [n, H]."""
        gate, up = block.gate_up(F.rms_norm(x, self.width, block.post_norm, self.eps)).chunk(2, dim=-1)
        return block.down(F.silu(gate) * up)


def _block(layer: Any) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    return Block(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        out=_joined(attention.o_proj),
        q_norm=_norm_weight(attention, "q_norm"),
        k_norm=_norm_weight(attention, "k_norm"),
        post_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=_joined(mlp.down_proj),
    )


def _joined(*parts: Any) -> Linear:
    """Several products of the same input as one."""
    weight = torch.cat([part.weight.detach() for part in parts])
    if all(part.bias is None for part in parts):
        return pack(weight)
    biases = [weight.new_zeros(len(p.weight)) if p.bias is None else p.bias.detach() for p in parts]
    return pack(weight, torch.cat(biases))


def _norm_weight(attention: Any, name: str) -> Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else norm.weight.detach()


def _rotary_tables(rotary: Any, like: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """cos and sin [capacity, head_dim]; the first half of sin is negated, so that a roll is the rotation."""
    positions = torch.arange(capacity, device=like.device).unsqueeze(0)
    cos, sin = (table[0] for table in rotary(like, positions))
    half = sin.shape[-1] // 2
    return cos.contiguous(), torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
