"""Whether this process can run `kernels`, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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

        binding.load_library_permanently(team.library)
        _recompile_after_changes()
        from draftboard.measure import kernels

        def call(work: Any) -> Call:
            return partial(team.run, int(work.address))

        self.forward, self.multiply = call(kernels.forward), call(kernels.multiply)
        self.attention, self.mlp = call(kernels.attention_alone), call(kernels.mlp_alone)


@cache
def kernels() -> Kernels | None:
    """The kernels of this process; None where `kernels_missing` says why."""
    found = team()
    return None if found is None or kernels_missing() is not None else Kernels(found)


@cache
def kernels_missing() -> str | None:
    """Why this process cannot run the kernels; None where it can."""
    if find_spec("numba") is None:
        return "numba is not installed"
    if team() is None:
        return "the threads that torch computes with were not found"
    return None if _fuses() else "the processor does not fuse products and sums"


def _recompile_after_changes() -> None:
    """numba keeps machine code by the date of its own source file, and knows nothing of `vectors`."""
    source, part = (Path(__file__).with_name(f"{name}.py") for name in ("kernels", "vectors"))
    with suppress(OSError):
        if part.stat().st_mtime > source.stat().st_mtime:
            source.touch()


def _fuses() -> bool:
    """Without the instruction, LLVM would call a function for each number."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX")
