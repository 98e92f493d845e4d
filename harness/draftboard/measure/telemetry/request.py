"""What the measuring process asks the sampling process for, and what it hears: plain data on a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GpuRef:
    """A GPU as CUDA knows it. `uuid` has no prefix; `pci` is like 0000:65:00.0; `mig` is the slice's own id
    where the user named one, as in MIG-5e6f..., since CUDA may tell the card's UUID for a slice."""

    name: str
    uuid: str | None
    pci: str | None
    memory_bytes: int
    mig: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Whom to watch: the process `pid`, the GPUs it computes on if any, and how often to poll."""

    pid: int
    gpus: tuple[GpuRef, ...] = ()
    period_s: float = 0.1

    @staticmethod
    def of_window(seconds: float, pid: int, gpus: tuple[GpuRef, ...]) -> Request:
        """For windows of so many seconds. Without a GPU a poll takes time from the processor that is
        measured, so there are thirty polls a window, between two and ten a second; with one, ten a second."""
        period = 0.1 if gpus else min(0.5, max(0.1, seconds / 30))
        return Request(pid, gpus, period)


Command = Literal["begin", "end"]
"""Each is answered: "begin" by True once the window is open, "end" by the `Window`."""


@dataclass(frozen=True, slots=True)
class Started:
    """The sampling process is ready; the versions that the driver told."""

    software: dict[str, str]


@dataclass(frozen=True, slots=True)
class Broken:
    """The sampling process cannot go on."""

    reason: str
