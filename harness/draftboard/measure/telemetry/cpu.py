"""The processor and the measured process, by psutil."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from draftboard.measure.telemetry.channel import Channel, Device, Polled, Quantity
from draftboard.measure.telemetry.reading import Refusal, Way
from draftboard.record.environment import read_cpu


class CpuBackend:
    """One device: the machine's processor, with what the process `pid` uses of it."""

    def __init__(self, pid: int) -> None:
        self.devices: tuple[Device, ...] = (Device(read_cpu()[0], "cpu", None, _channels(pid)),)
        self.software: dict[str, str] = {}

    def close(self) -> None:
        """psutil holds nothing open."""


def _channels(pid: int) -> list[Channel]:
    process = psutil.Process(pid)
    reads: list[tuple[Quantity, Callable[[], float]]] = [
        (Quantity("process_cpu_pct", "% of one core"), process.cpu_percent),
        (Quantity("machine_cpu_pct", "%", 100), psutil.cpu_percent),
        (Quantity("cpu_clock_mhz", "MHz", lowest=1), lambda: psutil.cpu_freq().current),
        (Quantity("process_rss_bytes", "bytes", lowest=1), lambda: process.memory_info().rss),
        (Quantity("load_1min", "runnable processes"), lambda: os.getloadavg()[0]),
    ]
    return [Polled(quantity, [_way(read)], _explain) for quantity, read in reads]


def _way(read: Callable[[], float]) -> Way:
    return Way("psutil", lambda now: [(now, float(read()))])


def _explain(error: Exception) -> Refusal:
    if isinstance(error, psutil.AccessDenied):
        return Refusal("no_permission", "the system does not let us")
    if isinstance(error, (AttributeError, NotImplementedError)):
        return Refusal("unsupported", "this system does not say")
    return Refusal("error", f"{type(error).__name__}: {error}")
