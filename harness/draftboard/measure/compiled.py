"""Whether this process can run `kernels`, and how they are called."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from draftboard.measure.team import Team, team

Call = Callable[[int, int], None]


class Kernels:
    """The compiled kernels. Each takes the address of its record and the number of threads."""

    def __init__(self, team: Team) -> None:
        """Compiles the kernels, or reads their code where it was kept: twenty seconds or one."""
        from llvmlite import binding

        for name, place in team.symbols().items():
            binding.add_symbol(name, place)
        from draftboard.measure import kernels

        def call(work: Any) -> Call:
            return partial(team.run, int(work.address))

        made = kernels.compiled(digest(Path(__file__).parent))
        self.forward, self.multiply = call(made.forward), call(made.multiply)
        self.attention, self.mlp = call(made.attention), call(made.mlp)


@cache
def kernels() -> Kernels | None:
    """The kernels of this process; None where `kernels_missing` says why."""
    return _made()[0]


@cache
def kernels_missing() -> str | None:
    """Why this process cannot run the kernels; None where it can."""
    return _made()[1]


@cache
def _made() -> tuple[Kernels | None, str | None]:
    """The kernels, or why there are none."""
    found = team()
    if find_spec("numba") is None:
        return None, "numba is not installed"
    if found is None:
        return None, "the threads that torch computes with were not found"
    if not _fuses():
        return None, "the processor does not fuse products and sums"
    try:
        return Kernels(found), None
    except Exception as error:  # a compiler has many ways to fail, and torch can do without
        words = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"they could not be compiled: {words[0]}"


def digest(folder: Path) -> int:
    """A number for the sources that are compiled into the kernels, which numba does not look at."""
    text = b"".join((folder / f"{name}.py").read_bytes() for name in ("row_math", "vectors"))
    return int.from_bytes(hashlib.sha256(text).digest()[:7])


def _fuses() -> bool:
    """Without the instruction, LLVM would call a function for each number."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX")
