"""The target's key/value cache: allocated once, written in place, cut back in O(1).

Cutting back only moves a number. Rows past it stay in memory and are overwritten by the next forward, so
nothing may read beyond `length`.
"""

from __future__ import annotations

import torch

from draftboard.errors import UserError


class KVCache:
    """Keys and values of every layer, each [kv_heads, capacity, head_dim], contiguous per head.

    A layer's keys and values lie behind one another, `layers[i]` [2 * kv_heads, capacity, head_dim], so that
    one copy writes both.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        both = torch.zeros((layers, 2 * kv_heads, capacity, head_dim), dtype=dtype, device=device)
        self.keys, self.values = both[:, :kv_heads], both[:, kv_heads:]
        self.layers = [both[layer] for layer in range(layers)]
        self.capacity = capacity
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on."""
        self.length = checked_length(length, self.length)

    def reserve(self, rows: int) -> slice:
        """The place of the next `rows` positions; raises UserError when they do not fit."""
        return reserve(self.length, rows, self.capacity)


def checked_length(length: int, now: int) -> int:
    """`length`, when a cache that holds `now` positions can be cut back to it."""
    if not 0 <= length <= now:
        raise ValueError(f"cannot cut a cache of {now} positions to {length}")
    return length


def reserve(length: int, rows: int, capacity: int) -> slice:
    """Positions length..length+rows, checked against the capacity."""
    if length + rows > capacity:
        raise UserError(
            f"context of {length + rows} tokens does not fit the cache of {capacity};"
            " shorten the prompt or the reply"
        )
    return slice(length, length + rows)
