"""The Llama-style decoder layer: pre-norm attention and a SwiGLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from draftboard.measure.block_parts import few, layer_call, mlp_call
from draftboard.measure.cache import KVCache
from draftboard_drafters._layers.attention import Attention, Geometry, Rows
from draftboard_drafters._layers.parameters import Parameters, joined, part


class SwiGLU:
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202), gate and up as one product."""

    def __init__(self, parameters: Parameters) -> None:
        """Parameters `gate_proj.weight`, `up_proj.weight` [I, H] and `down_proj.weight` [H, I]."""
        self.gate_up = joined(parameters, "gate_proj", "up_proj")
        self.down = joined(parameters, "down_proj")
        self.call = mlp_call(self.gate_up, self.down)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, H] to [n, H]."""
        if self.call is not None and few(x):
            return self.call(x)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class DecoderLayer:
    """x + attention(norm(x)), and on it x + swiglu(norm(x))."""

    def __init__(self, parameters: Parameters, geometry: Geometry) -> None:
        """Parameters `input_layernorm.weight`, `self_attn.*`, `post_attention_layernorm.weight`, `mlp.*`."""
        self.input_norm = geometry.norm(parameters["input_layernorm.weight"])
        self.attention = Attention(part(parameters, "self_attn."), geometry)
        self.post_norm = geometry.norm(parameters["post_attention_layernorm.weight"])
        self.mlp = SwiGLU(part(parameters, "mlp."))
        norms = self.input_norm.weight, self.post_norm.weight
        self.call = layer_call(self.attention.call, self.mlp.call, norms)

    def __call__(self, x: Tensor, rows: Rows, cache: KVCache, layer: int) -> Tensor:
        """x [n, H] at the rows' positions, which it fills in the cache's layer. Returns [n, H]."""
        start, table = rows.start, rows.rotary.table
        if self.call is not None and start is not None and table is not None and few(x):
            return self.call(x, cache, layer, start, table, causal=rows.sight.causal)
        x = x + self.attention(self.input_norm(x), rows, cache, layer)
        return x + self.mlp(self.post_norm(x))
