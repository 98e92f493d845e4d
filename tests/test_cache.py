"""The cache: places, cuts, limits, and that nothing past a cut is ever read."""

from __future__ import annotations

import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure.cache import KVCache
from draftboard.measure.module_cache import ModuleCache
from tiny import tiny_target

CPU = torch.device("cpu")
both_forwards = pytest.mark.parametrize("fused", [True, False], ids=["fused", "module"])


def kv_cache(capacity: int = 8) -> KVCache:
    return KVCache(2, 3, 4, capacity, torch.float32, CPU)


def filled_module_cache(rows: int, capacity: int = 8) -> ModuleCache:
    cache = ModuleCache(2, capacity)
    for layer in range(2):
        cache.update(torch.ones(1, 3, rows, 4), torch.ones(1, 3, rows, 5), layer)
    return cache


def test_room_is_made_once_for_all_positions() -> None:
    cache = kv_cache()
    assert cache.keys.shape == cache.values.shape == (2, 3, 8, 4)
    assert (cache.capacity, cache.length) == (8, 0)


def test_reserving_moves_nothing_until_the_rows_are_written() -> None:
    cache = kv_cache()
    assert cache.reserve(5) == slice(0, 5)
    assert cache.length == 0
    cache.length = 5
    assert cache.reserve(3) == slice(5, 8)


@pytest.mark.parametrize("rows", [4, 400])
def test_a_context_that_does_not_fit_is_the_users_to_mend(rows: int) -> None:
    cache = kv_cache()
    cache.length = 5
    with pytest.raises(UserError, match=f"context of {5 + rows} tokens does not fit the cache of 8; shorten"):
        cache.reserve(rows)


@pytest.mark.parametrize("length", [-1, 6])
def test_a_cut_to_a_length_that_was_never_reached_is_refused(length: int) -> None:
    cache = kv_cache()
    cache.length = 5
    with pytest.raises(ValueError, match=f"cannot cut a cache of 5 positions to {length}"):
        cache.truncate(length)
    with pytest.raises(ValueError, match=f"cannot cut a cache of 5 positions to {length}"):
        filled_module_cache(5).truncate(length)


def test_the_module_cache_returns_what_was_written_in_place() -> None:
    cache = ModuleCache(1, 8)
    cache.update(torch.full((1, 3, 2, 4), 1.0), torch.full((1, 3, 2, 5), -1.0), 0)
    where = cache.layers[0].keys.data_ptr()
    cache.truncate(1)
    keys, values = cache.update(torch.full((1, 3, 3, 4), 2.0), torch.full((1, 3, 3, 5), -2.0), 0)
    assert keys[0, 0, :, 0].tolist() == [1, 2, 2, 2]
    assert values[0, 0, :, 0].tolist() == [-1, -2, -2, -2]
    assert (keys.shape, values.shape) == ((1, 3, 4, 4), (1, 3, 4, 5))
    assert cache.layers[0].keys.data_ptr() == keys.data_ptr() == where


def test_the_module_cache_tells_transformers_how_far_it_is() -> None:
    cache = filled_module_cache(5)
    assert cache.get_seq_length() == cache.length == 5
    assert cache.get_mask_sizes(3, 0) == (8, 0)
    assert not any(cache.is_sliding)
    cache.truncate(2)
    assert [layer.get_seq_length() for layer in cache.layers] == [2, 2]
    assert cache.layers[0].get_max_length() == 8
    with pytest.raises(UserError, match="context of 9 tokens does not fit the cache of 8"):
        cache.update(torch.ones(1, 3, 7, 4), torch.ones(1, 3, 7, 5), 0)


@both_forwards
@torch.inference_mode()
def test_rows_past_a_cut_are_never_read(fused: bool) -> None:
    target, ids = tiny_target(fused=fused), torch.arange(10)
    target.begin((3,))
    target.prefill(ids[:4])
    expected = target.extend(ids[4:7])
    target.truncate(4)
    cache = target.forward.cache
    layers = [cache] if fused else cache.layers
    for layer in layers:
        layer.keys[..., 4:, :] = layer.values[..., 4:, :] = torch.nan
    found = target.extend(ids[4:7])
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@both_forwards
@torch.inference_mode()
def test_a_cut_moves_no_memory_and_a_new_text_starts_clean(fused: bool) -> None:
    target, ids = tiny_target(fused=fused), torch.arange(20)
    target.begin(())
    first, _ = target.prefill(ids)
    cache = target.forward.cache
    where = (cache if fused else cache.layers[0]).keys.data_ptr()
    target.truncate(3)
    target.extend(ids[:9])
    target.begin(())
    assert target.length == 0
    again, _ = target.prefill(ids)
    assert torch.equal(first, again)
    assert (cache if fused else cache.layers[0]).keys.data_ptr() == where


@both_forwards
@torch.inference_mode()
def test_the_last_position_can_be_used_and_one_more_leaves_the_cache_as_it_was(fused: bool) -> None:
    target, ids = tiny_target(fused=fused, max_context=6), torch.arange(7)
    target.begin(())
    target.prefill(ids[:5])
    expected, _ = target.extend(ids[5:6])
    assert target.length == 6
    with pytest.raises(UserError, match="context of 7 tokens does not fit the cache of 6"):
        target.extend(ids[6:])
    target.truncate(5)
    with pytest.raises(UserError, match="context of 7 tokens"):
        target.extend(ids[5:])
    assert target.length == 5
    assert torch.equal(target.extend(ids[5:6])[0], expected)
