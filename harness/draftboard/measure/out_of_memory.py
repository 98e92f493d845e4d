"""Running out of memory: how to tell it from other errors, and what to do about it."""

from __future__ import annotations

import errno
import re

import torch

ADVICE = (
    "use a smaller --max-context, a narrower --dtype, a smaller K, fewer arms, or a drafter with fewer"
    " layers or taps"
)

_KILL = -9
"""Exit code of a process that the kernel ended, as it does with the largest when memory runs short."""
_SAYINGS = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|ALLOC_FAILED", re.IGNORECASE
)
_SIZE = re.compile(r"tried to allocate (\d[\d.]*\s?\w+)", re.IGNORECASE)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch's on a GPU, the allocator's on a CPU, Python's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _SAYINGS.search(str(error)) is not None


def memory_words(error: BaseException) -> str:
    """One line for an error that is `out_of_memory`: the size refused, where it is said, and advice."""
    size = _SIZE.search(str(error))
    return f"out of memory{f': tried to allocate {size[1]}' if size else ''}; {ADVICE}"


def death_words(exitcode: int | None) -> str:
    """How a process that ended on its own ended, after "the worker process"."""
    if exitcode == _KILL:
        return f"was killed (signal 9), most likely because memory ran out ({ADVICE})"
    if exitcode is not None and exitcode < 0:
        return f"was ended by signal {-exitcode}"
    return f"ended with code {exitcode}"
