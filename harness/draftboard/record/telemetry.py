"""What the hardware said of itself while an arm ran: readings with their moments, or why there are none.

A reading that could not be had has a status and no values; it is never 0. Moments are seconds of the
monotonic clock since the window began. Means, energies and verdicts are functions of these and live in
`draftboard.judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "unsupported", "no_permission", "not_sampled", "error"]
DeviceKind = Literal["gpu", "mig", "cpu"]
SeriesKind = Literal["gauge", "counter", "mean"]
"""Read many times; read at both edges, where only the difference tells; one mean over the window."""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of one device within one window."""

    unit: str
    kind: SeriesKind
    status: Status
    source: str | None = None
    """How it was read, for instance from the driver's own buffer or by polling."""
    detail: str | None = None
    """Why the status is not ok, or what else went wrong."""
    at_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    dropped: int = 0
    """Readings outside of what the quantity can be."""


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """All quantities of one device within one window, by name."""

    name: str
    kind: DeviceKind
    uuid_sha256: str | None
    """Twelve hex digits of the hash of the device's UUID: tells devices apart and identifies none."""
    series: dict[str, Series]
    notes: tuple[str, ...] = ()
    """What a reader has to know, for instance that power is that of the whole card."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time under sampling, both edges after the device had finished its work."""

    seconds: float
    period_s: float
    """Seconds between two polls."""
    devices: tuple[DeviceWindow, ...]
    sampler_cpu_s: float | None = None
    """Processor seconds that the sampling process itself used."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """An arm run back to back after all timing, under sampling. Its speed counts nowhere."""

    window: Window
    replies: int
    tokens: int
    """Tokens of these replies, the first of each included."""
    software: dict[str, str]
    """Versions of the driver and of what it brings."""
    torch_allocated_peak_bytes: int | None = None
    torch_reserved_peak_bytes: int | None = None
