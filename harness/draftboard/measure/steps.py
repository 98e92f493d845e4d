"""A few rows through a whole model in one call of `kernels`, where its sizes and its processor allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
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


class Room:
    """Memory for what a call of a `kernels.MODEL` computes on its way, for all threads and for each."""

    def __init__(self, facts: np.ndarray) -> None:
        """For calls of `facts`, whose sizes are known."""
        self._facts, self._threads = facts, 0
        self._meeting = np.zeros(8, np.int64)  # a cache line's worth
        facts["meeting"] = self._meeting.ctypes.data

    def threads(self) -> int:
        """The number of threads that torch has now, with room for as many, who have not met yet."""
        threads = torch.get_num_threads()
        self._meeting[0] = 0
        if threads > self._threads:
            self._make(threads)
        return threads

    def _make(self, threads: int) -> None:
        one, self._threads = self._facts[0], threads
        heads = (2 * one["heads"] + 2 * one["kv_heads"]) * one["head_dim"]
        own = max(MOST_ROWS * one["hidden"], 2 * one["capacity"], 2 * one["inter"], one["head_dim"])
        self._shared = torch.empty(MOST_ROWS, max(heads, 3 * one["inter"]))
        self._more = torch.empty(MOST_ROWS, one["hidden"])
        self._own = torch.empty(threads, own)
        one["shared"], one["more"] = address(self._shared), address(self._more)
        one["own"], one["own_step"] = address(self._own), 4 * own


class Steps:
    """Calls of 1 to `MOST_ROWS` rows that append to the cache of a fused forward.

    What a row comes to depends neither on the number of rows of its call nor on the number of threads.
    """

    def __init__(self, forward: FusedForward, products: Products, fast: Kernels) -> None:
        """`products` are the forward's own."""
        self._fast, self.products, self._embedding = fast, products, forward.embedding
        self._head = products[HEAD][0].weight
        self.hidden = forward.embedding.shape[1]
        self.inter = products["down"][0].weight.shape[1]
        self._norms: list[Tensor] = []
        self._blocks = self._layers(forward)
        self._facts = self._model(forward)
        self._address = self._facts.ctypes.data
        self._room = Room(self._facts)

    def run(self, ids: Tensor, start: int, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """Writes ids [m] into the cache at `start`. Returns float32 logits [m or 1, V], features
        [m, L, H]."""
        rows, facts = len(ids), self._facts
        x = F.embedding(ids, self._embedding).float()
        tapped = tuple(dict.fromkeys(taps))
        features = self._tapped(x, tapped)
        logits = torch.empty((1 if last_only else rows, len(self._head)))
        facts["rows"], facts["start"], facts["last_only"] = rows, start, last_only
        facts["x"], facts["result"] = x.data_ptr(), logits.data_ptr()
        self._fast.forward(self._address, self._room.threads())
        if len(tapped) < len(taps):
            features = features[:, [tapped.index(tap) for tap in taps]]
        return logits, features.to(self._embedding.dtype)

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

    def _layers(self, forward: FusedForward) -> np.ndarray:
        from draftboard.measure.kernels import LAYER

        blocks = forward.blocks
        layers = np.zeros(len(blocks), LAYER)
        for name in _NAMES:
            layers[name] = [address(product.weight) for product in self.products[name]]
            layers[f"{name}_bias"] = [address(product.float_bias) for product in self.products[name]]
        for name in _NORMS:
            layers[name] = [self._norm(getattr(block, name)) for block in blocks]
        layers["cache"] = [address(cache) for cache in forward.cache.layers]
        return layers

    def _model(self, forward: FusedForward) -> np.ndarray:
        from draftboard.measure.kernels import MODEL

        facts = np.zeros(1, MODEL)
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
    fitting = all(isinstance(one, Streamed) and one.weight.dtype is forward.embedding.dtype for one in every)
    return found if fitting else None
