"""The ways in which a quantity can be read, tried in order: the first that works is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftboard.record.telemetry import Status

Point = tuple[float, float]
"""A moment of the monotonic clock in seconds, and a value."""

SLOW_S = 1.0
"""A way of reading that once takes longer than this would hold up all others; it is not used again."""


class NothingNew(Exception):
    """A read worked and had nothing to give since the last one. With words, what it gave does not tell the
    quantity, and they say why; the next one may."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a quantity can be read: `read` takes the moment and answers points in the quantity's unit."""

    source: str
    read: Callable[[float], Iterable[Point]]
    every_s: float = 0.0
    """Least seconds between two reads."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a way of reading does not work."""

    status: Status
    detail: str


def slow(source: str, seconds: float) -> Refusal:
    """Why a way is not used again after a call that took so long."""
    return Refusal("error", f"{source}: left after a call of {seconds:.1f} s")


Explain = Callable[[Exception], Refusal]
"""What a back end's errors mean."""


class Reader:
    """The ways of one quantity in order: the first that works is kept, one that fails before is left."""

    def __init__(self, ways: Sequence[Way], explain: Explain) -> None:
        self._ways, self._explain = list(ways), explain
        self._worked, self._last = False, -math.inf
        self._left: list[Refusal] = []
        self._failure: Refusal | None = None
        self.failures = 0
        self.silence: str | None = None
        """Why a read since `forget` that worked did not tell the quantity."""

    @property
    def source(self) -> str | None:
        """How it is read; None once no way is left."""
        return self._ways[0].source if self._ways else None

    @property
    def refusals(self) -> list[Refusal]:
        """Why ways were left, ever, and the last failure of the one in use since `forget`."""
        return [*self._left, *([self._failure] if self._failure else [])]

    def forget(self) -> None:
        """Forgets failures, which are a window's own; ways that were left stay so."""
        self.failures, self._failure, self.silence = 0, None, None

    def read(self, now: float, *, due: bool = False) -> list[Point]:
        """What there is to read; nothing before its time has come, unless `due`."""
        while self._ways and (due or now - self._last >= self._ways[0].every_s):
            began = time.monotonic()
            try:
                points = list(self._ways[0].read(now))
            except NothingNew as nothing:
                points, self.silence = [], str(nothing) or self.silence
            except Exception as error:
                if self._keep(self._explain(error), time.monotonic() - began):
                    return []
                continue
            self._worked, self._last = True, now
            self._leave_if_slow(time.monotonic() - began)
            return points
        return []

    def _keep(self, refusal: Refusal, seconds: float) -> bool:
        """Notes a failure. A way that has worked may recover and is kept; others, and slow ones, are left."""
        if self._worked and seconds <= SLOW_S:
            self.failures += 1
            self._failure = refusal
            return True
        self._left.append(Refusal(refusal.status, f"{self._ways.pop(0).source}: {refusal.detail}"))
        return False

    def _leave_if_slow(self, seconds: float) -> None:
        if seconds > SLOW_S:
            source = self._ways.pop(0).source
            self._left.append(slow(source, seconds))
