"""How fast this device can read memory: the physical floor under the time of a token.

Decoding one token reads every weight that it needs at least once, so their bytes over the bandwidth is a time
that no engine can beat. The bandwidth is the better of a plain large read and a matrix-vector product in the
run's dtype, with all of torch's threads, over so much memory that no cache holds a share of it worth naming.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from draftboard.measure.clock import Clock
from draftboard.measure.linear import pack

LEAST_BYTES, LEAST_BYTES_GPU = 512 * 1024**2, 4 * 1024**3
"""What is read at least, also where the cache's size is not told. A GPU reads half a gigabyte in the time of
a few launches, which would count as reading."""
CACHES = 4
"""What is read, in last-level caches: beyond it less than a quarter could come from them."""
MEMORY_SHARE = 0.5
"""Share of the free memory that the block may take."""

_WIDTH = 4096
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second of the two ways of reading `size` bytes. `cache` is the last-level cache in bytes,
    None where nobody tells it."""

    size: int
    cache: int | None
    read: float
    product: float

    @property
    def best(self) -> float:
        """The better of the two, in bytes per second."""
        return max(self.read, self.product)

    @property
    def outdoes_cache(self) -> bool:
        """False where so little was read that the cache holds a good part of it."""
        return self.caches is None or self.caches >= CACHES

    @property
    def caches(self) -> float | None:
        """What was read, in last-level caches."""
        return None if self.cache is None else self.size / self.cache


@torch.inference_mode()
def measure_bandwidth(device: torch.device, dtype: torch.dtype) -> Bandwidth:
    """Reads a large block a few times, either way; the fastest time counts."""
    cache = last_level_cache(device)
    least = LEAST_BYTES_GPU if device.type == "cuda" else LEAST_BYTES
    size = block_bytes(cache, _free_bytes(device), least)
    block = torch.ones(size // dtype.itemsize, dtype=dtype, device=device)
    words = block.view(torch.float32)  # a sum in float32 waits for nothing but memory, whatever the dtype
    product, vector = pack(block.view(-1, _WIDTH)), block[:_WIDTH].view(1, -1)
    read_ms, product_ms = (
        _fastest_ms(device, work) for work in (lambda: words.sum(), lambda: product(vector))
    )
    return Bandwidth(size, cache, size / (read_ms / 1e3), size / (product_ms / 1e3))


def block_bytes(cache: int | None, free: int, least: int = LEAST_BYTES) -> int:
    """Bytes to read: `CACHES` last-level caches and at least `least`, within `MEMORY_SHARE` of what is
    free; a whole number of rows of the product in any dtype."""
    row = _WIDTH * torch.float32.itemsize
    wanted = max(least, CACHES * (cache or 0))
    return max(1, min(wanted, int(free * MEMORY_SHARE)) // row) * row


def last_level_cache(device: torch.device) -> int | None:
    """Bytes of the last cache before memory that this process's cores share, or the GPU's; None where it is
    not told."""
    if device.type == "cuda":
        facts: Any = torch.cuda.get_device_properties(device)
        return getattr(facts, "L2_cache_size", None) or None
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return cache_of(Path(f"/sys/devices/system/cpu/cpu{core}/cache") for core in cores)


def cache_of(folders: Iterable[Path]) -> int | None:
    """Bytes of the highest-level caches in the kernel's folders of some cores, each cache counted once."""
    found: dict[tuple[int, str], int] = {}
    for index in (index for folder in folders for index in folder.glob("index*")):
        try:
            level, shared, size = (
                (index / n).read_text().strip() for n in ("level", "shared_cpu_list", "size")
            )
            found[int(level), shared] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in found), default=None)
    return sum(size for (level, _), size in found.items() if level == last) or None


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _fastest_ms(device: torch.device, work: Callable[[], object]) -> float:
    clock, times = Clock(device), []
    for _ in range(_REPEATS):
        began = clock.now_ms()
        work()
        times.append(clock.now_ms() - began)
    return min(times[1:])
