"""Memory that a freed weight leaves: glibc keeps it, unless it is told to map each weight by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of mallopt(3)'s parameters."""
_LOADING = 1 << 18
"""While weights are read: smaller than any that counts, so that each is mapped, and unmapped when freed."""
_DECODING = 32 << 20
"""Afterwards, the most that glibc goes up to by itself: temporaries of a forward are taken from memory that
is there, where a mapping of their own would cost a page fault every 4 kB."""


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Within, what is freed of at least 256 kB goes back to the system. Elsewhere than under glibc this
    changes nothing."""
    _thresholds(_LOADING)
    try:
        yield
    finally:
        _thresholds(_DECODING)


def _thresholds(size: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, size)
    mallopt(_TRIM_THRESHOLD, 2 * size)
