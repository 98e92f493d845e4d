"""How much memory a run needs: of a GPU what torch allocated there, else this process's pages in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from draftboard.record.codec import from_json
from draftboard.record.journal import Journal
from draftboard.record.records import Arm, Json, Memory

T = TypeVar("T")

NO_REPLY = "the arm gave no reply"
NOT_TOLD = "this system does not tell the peak of a process's memory"
RESET_PEAK = "5"
"""What resets a process's peak of resident memory, by proc(5)."""


class Counter(Protocol):
    """What tells the memory in use, in bytes; OSError where it does not."""

    def now(self) -> int: ...
    def peak(self) -> int: ...
    def reset(self) -> None: ...


class MemoryMeter:
    """Peaks of the memory in use, stretch by stretch. Made before the target is loaded: what is in use then
    is what the libraries take."""

    def __init__(self, device: torch.device, counter: Counter | None = None) -> None:
        self.missing: str | None = None
        """Why nothing is known."""
        self._counter = counter or (GpuCounter(device) if device.type == "cuda" else ProcessCounter())
        self._before = self._told(self._counter.now)

    def begin(self) -> None:
        """Begins a stretch, whose peak so far is what is in use now."""
        self._told(self._counter.reset)

    def read(self) -> Memory | None:
        """The stretch so far; None where it is not known, and `missing` says why."""
        peak = self._told(self._counter.peak)
        if self.missing is not None or self._before is None or peak is None:
            return None
        return Memory(self._before, peak)

    def _told(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except OSError as error:
            self.missing = f"{NOT_TOLD} ({error.strerror or error})"
            return None


class GpuCounter:
    """Bytes that torch's allocator has handed out on a GPU; contexts and libraries are not among them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.init()  # type: ignore[no-untyped-call]

    def now(self) -> int:
        """Bytes handed out."""
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        """The most since the last reset."""
        return torch.cuda.max_memory_allocated(self.device)

    def reset(self) -> None:
        """Begins anew."""
        torch.cuda.reset_peak_memory_stats(self.device)


class ProcessCounter:
    """Bytes of this process that lie in memory, as Linux tells them."""

    folder = Path("/proc/self")

    def now(self) -> int:
        """Resident bytes."""
        return self._field("VmRSS")

    def peak(self) -> int:
        """The most since the last reset."""
        return self._field("VmHWM")

    def reset(self) -> None:
        """Begins anew."""
        (self.folder / "clear_refs").write_text(RESET_PEAK)

    def _field(self, name: str) -> int:
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"no {name}")


def with_memory(arms: Sequence[Arm], journal: Journal) -> list[Arm]:
    """The arms, each with the reply that took the most beyond what was in use before."""
    told = [entry.data for entry in journal.read() if entry.kind == "trace"]
    return [_with_most(arm, [data for data in told if data["arm"] == arm.id]) for arm in arms]


def _with_most(arm: Arm, replies: Sequence[Json]) -> Arm:
    found = [from_json(Memory, data["memory"]) for data in replies if data["memory"] is not None]
    if found:
        most = max(found, key=lambda one: one.peak_bytes - one.before_bytes)
        return replace(arm, memory=most, memory_missing=None)
    return replace(arm, memory_missing=replies[-1]["memory_missing"] if replies else NO_REPLY)
