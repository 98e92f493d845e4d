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

_LOADED = re.compile(r"^(?:\S+\s+){5}(/.*/lib(?:gomp|omp|iomp5)[^/]*\.so[^/]*)$", re.MULTILINE)
_ASKED = ("omp_get_thread_num", "omp_get_num_threads")
_NEEDED = ("GOMP_parallel", *_ASKED)


class Team:
    """torch's OpenMP threads."""

    def __init__(self, library: str) -> None:
        """`library` is the path of an OpenMP library that this process has loaded."""
        self.library, loaded = library, ctypes.CDLL(library)
        self._places = {name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in _ASKED}
        self._parallel = loaded.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None

    def symbols(self) -> dict[str, int]:
        """Where this library's own functions are that a thread asks for its number and how many there are.
        By name alone another library of the process might answer, to which these threads are strangers."""
        return {name: place or 0 for name, place in self._places.items()}

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
