"""One quantity of one device within a window, and what devices and their sources look like to the sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftboard.measure.telemetry.reading import Explain, Point, Reader, Refusal, Way
from draftboard.record.telemetry import DeviceKind, Series, SeriesKind, Status

_DIGITS = 4


class Channel(Protocol):
    """What is done with a quantity: a window is begun, polled within and ended, its series handed over.

    `drain` comes before a window is begun: slow first reads and what was gathered before do not count in it.
    `edges` says that the readings at the window's two edges matter; these are taken next to the clock's.
    """

    edges: bool

    def drain(self, now: float) -> None: ...
    def begin(self, now: float) -> None: ...
    def poll(self, now: float) -> None: ...
    def end(self, now: float) -> None: ...
    def series(self) -> dict[str, Series]: ...


@dataclass(frozen=True, slots=True)
class Device:
    """What is sampled together: one GPU, a slice of one, or the machine's processor."""

    name: str
    kind: DeviceKind
    uuid_sha256: str | None
    channels: Sequence[Channel]
    notes: tuple[str, ...] = ()


class Backend(Protocol):
    """A source of devices. What cannot be opened or read has channels that say so."""

    devices: tuple[Device, ...]
    software: dict[str, str]

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is read, in which unit and manner, and the values it can have."""

    name: str
    unit: str
    highest: float = 1e15
    lowest: float = 0.0
    kind: SeriesKind = "gauge"
    whole: bool = False
    """Zeros tell nothing of a window in which any reading stayed silent."""

    def missing(self, refusal: Refusal, dropped: int = 0) -> Series:
        """The series of a quantity that could not be had."""
        return Series(self.unit, self.kind, refusal.status, detail=refusal.detail, dropped=dropped)


class Polled:
    """A gauge read again and again within a window, or a counter read at its two edges."""

    def __init__(self, quantity: Quantity, ways: Sequence[Way], explain: Explain) -> None:
        self._quantity, self._reader = quantity, Reader(ways, explain)
        self.edges = quantity.kind == "counter"
        self._points: list[Point] = []
        self._begun = self._ended = 0.0

    def drain(self, now: float) -> None:
        """A gauge read now tells of the time before now, so this is not kept."""
        self._reader.read(now, due=True)

    def begin(self, now: float) -> None:
        """Forgets all before."""
        self._begun, self._ended = now, now
        self._reader.forget()
        self._points = self._reader.read(now, due=True) if self.edges else []

    def poll(self, now: float) -> None:
        if not self.edges:
            self._points += self._reader.read(now)

    def end(self, now: float) -> None:
        self._ended = now
        self._points += self._reader.read(now, due=True)

    def series(self) -> dict[str, Series]:
        """The window's readings. Those of before or after it are left out, impossible ones are counted."""
        inside = [point for point in self._points if self._begun <= point[0] <= self._ended]
        kept = [(at, value) for at, value in inside if self._possible(value)]
        dropped = len(inside) - len(kept)
        if self._quantity.whole and self._reader.silence and not any(value for _, value in kept):
            kept = []
        status, detail = self._outcome(bool(kept), dropped)
        return {
            self._quantity.name: Series(
                unit=self._quantity.unit,
                kind=self._quantity.kind,
                status=status,
                source=self._reader.source,
                detail=detail,
                at_s=tuple(round(at - self._begun, _DIGITS) for at, _ in kept),
                values=tuple(round(value, _DIGITS) for _, value in kept),
                dropped=dropped,
            )
        }

    def _possible(self, value: float) -> bool:
        return math.isfinite(value) and self._quantity.lowest <= value <= self._quantity.highest

    def _outcome(self, any_kept: bool, dropped: int) -> tuple[Status, str | None]:
        reader = self._reader
        why = "; ".join(refusal.detail for refusal in reader.refusals) or None
        if any_kept:
            return "ok", f"{reader.failures} reads failed: {why}" if reader.failures else why
        if reader.source is None or reader.failures:
            return (reader.refusals[-1].status if reader.refusals else "error"), why
        if dropped:
            return "error", f"all {dropped} readings were impossible values"
        if reader.silence:
            return "unsupported", reader.silence
        return "not_sampled", "the window ended before the first reading"


class Unreadable:
    """Quantities of a device that could not be opened: each says why."""

    edges = False

    def __init__(self, quantities: Iterable[Quantity], refusal: Refusal) -> None:
        self._series = {one.name: one.missing(refusal) for one in quantities}

    def drain(self, now: float) -> None:
        """Nothing to read."""

    def begin(self, now: float) -> None:
        """Nothing to read."""

    def poll(self, now: float) -> None:
        """Nothing to read."""

    def end(self, now: float) -> None:
        """Nothing to read."""

    def series(self) -> dict[str, Series]:
        return self._series
