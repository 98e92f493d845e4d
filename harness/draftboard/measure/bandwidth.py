"""How fast this device can read memory: the physical floor under the time of a token.

Decoding one token reads every weight at least once, so weight bytes over bandwidth is a time that no engine
can beat. The bandwidth is the better of a plain large read and a matrix-vector product in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftboard.measure.clock import Clock
from draftboard.measure.linear import pack

READ_BYTES = 512 * 1024**2
"""Size of what is read: several times any last-level cache."""

_WIDTH = 4096
_REPEATS = 7


def read_bandwidth(device: torch.device, dtype: torch.dtype) -> float:
    """Bytes per second that a large read reaches, with all threads."""
    count = READ_BYTES // dtype.itemsize
    block = torch.ones(count, dtype=dtype, device=device)
    matrix, vector = block.view(-1, _WIDTH), block[:_WIDTH].view(1, -1)
    product = pack(matrix)
    best = min(_fastest_ms(device, lambda: block.sum()), _fastest_ms(device, lambda: product(vector)))
    return READ_BYTES / (best / 1e3)


@torch.inference_mode()
def _fastest_ms(device: torch.device, work: Callable[[], object]) -> float:
    clock, times = Clock(device), []
    for _ in range(_REPEATS):
        began = clock.now_ms()
        work()
        times.append(clock.now_ms() - began)
    return min(times[1:])
