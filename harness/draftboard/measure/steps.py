"""A few rows through a whole model in one call of `kernels`, where its sizes and its processor allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM
from draftboard.measure.compiled import Kernels, kernels
from draftboard.measure.linear import MOST_ROWS, VECTOR, Streamed, address

if TYPE_CHECKING:
    from draftboard.measure.fused import FusedForward

Products = dict[str, list[Streamed]]
"""The products of each block by their names in it, and the head's."""

HEAD = "head"
_NAMES = ("qkv", "out", "gate_up", "down")
_NORMS = ("input_norm", "q_norm", "k_norm", "post_norm")


class Steps:
    """Calls of 1 to `MOST_ROWS` rows that append to the cache of a fused forward.

    What a row comes to depends neither on the number of rows of its call nor on the number of threads.
    """

    def __init__(self, forward: FusedForward, products: Products, fast: Kernels) -> None:
        """`products` are the forward's own."""
        self._fast, self._forward, self.products = fast, forward, products
        self._head = products[HEAD][0].weight
        self.hidden = forward.embedding.shape[1]
        self.inter = products["down"][0].weight.shape[1]
        self._norms: list[Tensor] = []
        self._blocks = self._layers()
        self._facts = self._model()
        self._address = self._facts.ctypes.data
        self._room(torch.get_num_threads())

    def run(self, ids: Tensor, start: int, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """Writes ids [m] into the cache at `start`. Returns float32 logits [m or 1, V], features
        [m, L, H]."""
        rows, threads, facts = len(ids), torch.get_num_threads(), self._facts
        if threads > self._threads:
            self._room(threads)
        x = self._forward.embed(ids).float()
        features = self._tapped(x, taps)
        logits = torch.empty((1 if last_only else rows, len(self._head)))
        facts["rows"], facts["start"], facts["last_only"] = rows, start, last_only
        facts["x"], facts["logits"] = x.data_ptr(), logits.data_ptr()
        self._fast.forward(self._address, threads)
        return logits, features.to(self._forward.embedding.dtype)

    def _tapped(self, x: Tensor, taps: tuple[int, ...]) -> Tensor:
        """Room for the states of `taps`, with those of tap 0 filled in and the others' places told."""
        features = torch.empty((len(x), len(taps), self.hidden))
        places = {tap: features.data_ptr() + 4 * self.hidden * index for index, tap in enumerate(taps)}
        self._facts["tap_step"] = 4 * self.hidden * len(taps)
        self._facts["normed"] = places.get(FINAL_NORM, 0)
        self._blocks["tap"] = [places.get(layer + 1, 0) for layer in range(len(self._blocks))]
        if 0 in places:
            features[:, taps.index(0)] = x
        return features

    def _layers(self) -> np.ndarray:
        from draftboard.measure.kernels import LAYER

        blocks = self._forward.blocks
        layers = np.zeros(len(blocks), LAYER)
        for name in _NAMES:
            layers[name] = [address(product.weight) for product in self.products[name]]
            layers[f"{name}_bias"] = [address(product.float_bias) for product in self.products[name]]
        for name in _NORMS:
            layers[name] = [self._norm(getattr(block, name)) for block in blocks]
        layers["cache"] = [address(cache) for cache in self._forward.cache.layers]
        return layers

    def _model(self) -> np.ndarray:
        from draftboard.measure.kernels import MODEL

        forward, facts = self._forward, np.zeros(1, MODEL)
        self._angles = forward.rotation.angles()
        known = {
            "half": forward.embedding.dtype is torch.bfloat16,
            "hidden": self.hidden,
            "heads": forward.heads,
            "kv_heads": forward.kv_heads,
            "head_dim": forward.head_dim,
            "inter": self.inter,
            "layers": len(self._blocks),
            "blocks": self._blocks.ctypes.data,
            "norm": self._norm(forward.norm),
            "head": address(self._head),
            "outputs": len(self._head),
            "capacity": forward.cache.capacity,
            "angles": address(self._angles),
            "partner": forward.rotation.partner,
            "stride": forward.rotation.stride,
            "eps": forward.eps,
            "scale": forward.head_dim**-0.5,
        }
        for name, value in known.items():
            facts[name] = value
        return facts

    def _room(self, threads: int) -> None:
        """Room for what a call computes, for all threads and for each."""
        forward, self._threads = self._forward, threads
        width = (forward.heads + 2 * forward.kv_heads) * forward.head_dim
        wide = max(2 * self.inter, width, self.hidden)
        self._shared = torch.empty(MOST_ROWS * (wide + max(self.inter, width)))
        own = max(MOST_ROWS * self.hidden, 2 * forward.cache.capacity, 2 * self.inter)
        self._own = torch.empty(threads, own)
        self._facts["shared"], self._facts["own"] = address(self._shared), address(self._own)
        self._facts["own_step"] = 4 * own

    def _norm(self, weight: Tensor | None) -> int:
        """The address of a norm's factors in float32, kept here; 0 for None."""
        if weight is None:
            return 0
        self._norms.append(weight.detach().float().contiguous())
        return address(self._norms[-1])


def steps_of(forward: FusedForward) -> Steps | None:
    """The calls of a forward; None where its sizes or this process do not allow them."""
    fast, products = kernels(), _products(forward)
    if fast is None or products is None or forward.head_dim % VECTOR:
        return None
    return Steps(forward, products, fast)


def _products(forward: FusedForward) -> Products | None:
    """The products of a forward, where all of them are the kernels'."""
    found = {name: [getattr(block, name) for block in forward.blocks] for name in _NAMES}
    found[HEAD] = [forward.lm_head]
    every = [product for products in found.values() for product in products]
    return found if all(isinstance(product, Streamed) for product in every) else None
