"""The threads that torch computes with, for kernels of our own.

torch's products run on a team of OpenMP threads. A second team beside it would fight for the same cores:
idle threads spin for a while before they sleep. So a kernel is handed to the library that torch has loaded,
by the entry that GNU's, LLVM's and Intel's OpenMP share.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")
"""What a Linux process has loaded."""

_LOADED = re.compile(r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so[^/\s]*)$", re.MULTILINE)
_NEEDED = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class Team:
    """torch's OpenMP threads."""

    def __init__(self, library: str) -> None:
        """`library` is the path of an OpenMP library that this process has loaded."""
        self.library = library
        self._parallel = ctypes.CDLL(library).GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None

    def run(self, work: int, facts: int, threads: int) -> None:
        """Calls the function at address `work` with the address `facts` in each of `threads` threads, and
        waits for them."""
        self._parallel(work, facts, threads, 0)


@cache
def team() -> Team | None:
    """The team of this process; None where torch's OpenMP cannot be found or is of another kind."""
    for library in _libraries():
        try:
            found = ctypes.CDLL(library)
            if all(hasattr(found, name) for name in _NEEDED):
                return Team(library)
        except OSError:
            continue
    return None


def _libraries() -> list[str]:
    """OpenMP libraries of this process, torch's own first. Linux tells them; other systems do not."""
    try:
        found = dict.fromkeys(_LOADED.findall(MAPS.read_text()))
    except OSError:
        return []
    home = str(Path(torch.__file__).parent)
    return sorted(found, key=lambda path: not path.startswith(home))
