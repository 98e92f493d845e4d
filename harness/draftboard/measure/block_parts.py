"""A decoder block as one call of `kernels`, or its attention and its MLP, for the layers of drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftboard.measure.cache import KVCache
from draftboard.measure.compiled import Call, kernels
from draftboard.measure.linear import MOST_ROWS, VECTOR, Linear, Streamed, address
from draftboard.measure.steps import Room


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of an attention; the factors of queries' and keys' norms [head_dim], None for none."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class _Part:
    """A call with its record: from states [n, in] to [n, out], computed in float32."""

    def __init__(self, call: Call, products: dict[str, Streamed], sizes: dict[str, Any]) -> None:
        from draftboard.measure.kernels import LAYER, MODEL

        self._call, self.products = call, products
        self.layer, self.facts = np.zeros(1, LAYER), np.zeros(1, MODEL)
        for name, product in products.items():
            self.layer[name], self.layer[f"{name}_bias"] = (
                address(product.weight),
                address(product.float_bias),
            )
        first, *_, last = products.values()
        self.inputs, self.outputs = first.weight.shape[1], len(last.weight)
        half = first.weight.dtype is torch.bfloat16
        known = {"half": half, "hidden": self.outputs, "inner": self.inputs, **sizes}
        for name, value in {**known, "blocks": self.layer.ctypes.data, "layers": 1}.items():
            self.facts[name] = value
        self._address, self.room = self.facts.ctypes.data, Room(self.facts)

    def _check(self, x: Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != self.inputs or not few(x):
            raise ValueError(
                f"1 to {MOST_ROWS} states {self.inputs} wide were expected on the CPU, found {tuple(x.shape)}"
            )

    def run(self, x: Tensor) -> Tensor:
        self._check(x)
        wide, out = x.float().contiguous(), torch.empty(len(x), self.outputs)
        self.facts["x"], self.facts["rows"], self.facts["result"] = wide.data_ptr(), len(x), out.data_ptr()
        self._call(self._address, self.room.threads())
        return out.to(x.dtype)


class AttentionCall(_Part):
    """Products, norms of heads, rotation, the cache, and attention over what is in it."""

    def __init__(self, call: Call, qkv: Streamed, out: Streamed, heads: Heads, **more: Streamed) -> None:
        size = heads.head_dim
        counts = {"heads": heads.heads, "kv_heads": heads.kv_heads, "head_dim": size, "eps": heads.eps}
        turning = {"scale": size**-0.5, "stride": 1, "partner": size // 2}
        super().__init__(call, {"qkv": qkv, "out": out, **more}, {**counts, **turning})
        self._norms = [norm if norm is None else norm.float() for norm in (heads.q_norm, heads.k_norm)]
        self.heads = heads
        self.layer["q_norm"], self.layer["k_norm"] = map(address, self._norms)
        self._capacity, self._dtype = 0, qkv.weight.dtype
        self._kv_heads, self._head_dim = heads.kv_heads, size

    def __call__(
        self, x: Tensor, cache: KVCache, layer: int, start: int, angles: Tensor, *, causal: bool
    ) -> Tensor:
        """x [n, in] at positions `start` on, which it fills in the cache's layer, to [n, H].

        A row sees all positions up to its own (`causal`) or up to the last row's. angles: float32
        [capacity, head_dim], cosines and then sines, for heads whose halves turn together.
        """
        facts, most = self.facts, min(cache.capacity, len(angles))
        if start + len(x) > most:
            raise ValueError(f"{len(x)} rows from position {start} on do not fit {most} positions")
        held, expected = cache.layers[layer], (2 * self._kv_heads, cache.capacity, self._head_dim)
        if held.shape != expected or held.dtype is not self._dtype or not held.is_contiguous():
            raise ValueError(f"a cache {expected} of {self._dtype} was expected, found {tuple(held.shape)}")
        if angles.shape[1] != self._head_dim or angles.dtype is not torch.float32:
            raise ValueError(f"float32 angles {self._head_dim} wide were expected, found {angles.dtype}")
        if cache.capacity != self._capacity:
            facts["capacity"] = self._capacity = cache.capacity
            self.room = Room(facts)
        self.layer["cache"], facts["angles"] = held.data_ptr(), angles.data_ptr()
        facts["start"], facts["whole"] = start, not causal
        return self.run(x)


class LayerCall(AttentionCall):
    """x + attention(norm(x)), and on it x + MLP(norm(x)): a whole block."""

    def __init__(
        self, call: Call, attention: AttentionCall, mlp: MlpCall, norms: tuple[Tensor, Tensor]
    ) -> None:
        """`norms` are the factors [H] before attention and before the MLP."""
        qkv, out = attention.products.values()
        super().__init__(call, qkv, out, attention.heads, **mlp.products)
        self._factors = [norm.float().contiguous() for norm in norms]
        self.layer["input_norm"], self.layer["post_norm"] = map(address, self._factors)
        self.facts["inter"] = mlp.facts["inter"]
        # The norm at a model's end, which a block has not: what comes of it goes nowhere.
        self.facts["norm"] = address(self._factors[-1])

    def run(self, x: Tensor) -> Tensor:
        self._check(x)
        wide = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        self.facts["x"], self.facts["rows"] = wide.data_ptr(), len(x)
        self._call(self._address, self.room.threads())
        return wide.to(x.dtype)


class MlpCall(_Part):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, call: Call, gate_up: Streamed, down: Streamed) -> None:
        super().__init__(call, {"gate_up": gate_up, "down": down}, {"inter": down.weight.shape[1]})

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, H] to [n, H], n from 1 to `MOST_ROWS`."""
        return self.run(x)


def attention_call(qkv: Linear, out: Linear, heads: Heads) -> AttentionCall | None:
    """The call for these products; None where they are not the kernels' or the heads no whole vectors."""
    fast = kernels()
    if fast is None or not isinstance(qkv, Streamed) or not isinstance(out, Streamed):
        return None
    if qkv.weight.dtype is not out.weight.dtype:
        return None
    return AttentionCall(fast.attention, qkv, out, heads) if heads.head_dim % VECTOR == 0 else None


def mlp_call(gate_up: Linear, down: Linear) -> MlpCall | None:
    """The call for these products; None where they are not the kernels'."""
    fast = kernels()
    if fast is None or not isinstance(gate_up, Streamed) or not isinstance(down, Streamed):
        return None
    if gate_up.weight.dtype is not down.weight.dtype:
        return None
    return MlpCall(fast.mlp, gate_up, down)


def layer_call(
    attention: AttentionCall | None, mlp: MlpCall | None, norms: tuple[Tensor, Tensor]
) -> LayerCall | None:
    """The call for a block of these halves; None where they are none or do not fit each other."""
    fast = kernels()
    if fast is None or attention is None or mlp is None:
        return None
    sizes = {(part.inputs, part.outputs, int(part.facts["half"][0])) for part in (attention, mlp)}
    widths = {attention.inputs, attention.outputs, *map(len, norms)}
    return LayerCall(fast.forward, attention, mlp, norms) if len(sizes) == len(widths) == 1 else None


def few(x: Tensor) -> bool:
    """Whether these are rows for a call: on the CPU, one to `MOST_ROWS`."""
    return 0 < len(x) <= MOST_ROWS and x.device.type == "cpu"
