"""One clock for every arm: spans that explain a reply and the wall time they must add up to.

On a CPU a span is two readings of the monotonic counter. On a GPU it is two events in the stream, read
after the last round, so that measuring never makes the host wait inside a round.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch


class Span:
    """A stretch of time; `ms` may be read once the reply is over."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._start: Any = None
        self._stop: Any = None

    def __enter__(self) -> Span:
        self._start = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = self._read()

    def _read(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @property
    def ms(self) -> float:
        """Length in milliseconds."""
        if self._cuda:
            return float(self._start.elapsed_time(self._stop))
        return float(self._stop - self._start) * 1e3


class Clock:
    """Spans and synchronised readings for one device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def span(self, name: str) -> Span:
        """A span to enter with `with`; `name` is for subclasses that treat spans differently."""
        return Span(self._cuda)

    def now_ms(self) -> float:
        """Wall time, after everything queued on the device has finished."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter() * 1e3
