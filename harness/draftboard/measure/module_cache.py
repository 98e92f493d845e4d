"""The target's key/value cache behind transformers' interface, for a target that runs its own forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftboard.measure.cache import checked_length, reserve


class ModuleCache(Cache):  # type: ignore[misc]
    """Allocated once and cut back in O(1), like `KVCache`."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[_ModuleCacheLayer(capacity) for _ in range(layers)])
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Positions held."""
        return int(self.layers[0].length)

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on."""
        for layer in self.layers:
            layer.length = checked_length(length, layer.length)


class _ModuleCacheLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def room(states: Tensor) -> Tensor:
            batch, heads, _, width = states.shape
            return states.new_zeros((batch, heads, self.capacity, width))

        self.keys, self.values = room(key_states), room(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = reserve(self.length, key_states.shape[-2], self.capacity)
        self.keys[:, :, place] = key_states
        self.values[:, :, place] = value_states
        self.length = place.stop
        return self.keys[:, :, : place.stop], self.values[:, :, : place.stop]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity
