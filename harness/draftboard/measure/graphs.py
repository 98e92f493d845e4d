"""Forwards of a few rows as CUDA graphs: one launch where the eager forward makes hundreds.

A graph repeats the kernels of one run on the same memory. So there is one for each number of rows, width of
the cache (powers of two) and set of taps; what changes from round to round lies in buffers: the ids, and the
position of the first of them. Graphs of one target share a pool of memory, since no two run at once and
nothing of one run is read after the next but what was copied out.

Capturing takes a while and happens before the clock starts. Where it fails, the eager forward goes on alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftboard.measure.fused import FusedForward

LEAST_WIDTH = 256
"""Positions that the narrowest graph sees; every further one sees twice as many."""

UNTRIED = "nothing has been captured yet"

_TRIALS = 2
"""Runs before a capture: libraries choose kernels and allocate workspaces in the first ones."""


class Recorder(Protocol):
    """Records work on a device, to be repeated."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What repeats `work` on the same memory, which it reads and writes in place. Runs it once or more.
        Raises RuntimeError where the device or a library will not have it."""


class CudaRecorder:
    """Records CUDA graphs in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder`."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            # A capture that cannot be ended stays on its stream; this block leaves it in any case.
            with torch.cuda.stream(self._stream):
                for _ in range(_TRIALS):
                    work()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    work()
        finally:
            self._stream.synchronize()
        return graph.replay


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The memory that graphs of one number of rows and set of taps read from and write to."""

    ids: Tensor
    logits: Tensor
    features: Tensor


class Graphs:
    """A fused forward, replayed from graphs where there is one for what is asked, else run eagerly."""

    def __init__(self, forward: FusedForward, recorder: Recorder, least_width: int) -> None:
        self.forward, self.recorder = forward, recorder
        self.widths = _widths(least_width, forward.cache.capacity)
        self.missing: str | None = UNTRIED
        """Why there are no graphs; None where there are."""
        self._failed = False
        self._start = torch.zeros((), dtype=torch.int64, device=forward.embedding.device)
        self._buffers: dict[tuple[int, tuple[int, ...]], _Buffers] = {}
        self._graphs: dict[tuple[int, int, tuple[int, ...]], Callable[[], None]] = {}

    @property
    def count(self) -> int | None:
        """Graphs that there are; None for none, and `missing` says why."""
        return len(self._graphs) or None

    def prepare(self, rows: Iterable[int], taps: tuple[int, ...]) -> None:
        """Captures what forwards of these numbers of rows will need, wherever in the cache they stand.

        The cache must be empty: trial runs write to its first positions. After a failure nothing is captured
        any more, and `missing` says why.
        """
        if self._failed:
            return
        wanted = ((m, width, taps) for m in rows for width in self.widths if m <= width)
        try:
            for key in wanted:
                if key not in self._graphs:
                    self._graphs[key] = self._capture(*key)
                    self.missing = None
        except RuntimeError as error:
            self._failed = True
            self._graphs.clear()
            self._buffers.clear()
            self.missing = f"capture failed: {type(error).__name__}: {_first_line(error)}"

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """As `FusedForward.run`. What it returns is the caller's own: no later run changes it."""
        cache = self.forward.cache
        place = cache.reserve(len(ids))
        width = self.widths[bisect_left(self.widths, place.stop)]
        replay = self._graphs.get((len(ids), width, taps))
        if replay is None:
            return self.forward.run(ids, taps, last_only)
        held = self._buffers[len(ids), taps]
        held.ids.copy_(ids)
        self._start.fill_(place.start)
        replay()
        cache.length = place.stop
        return (held.logits[-1:] if last_only else held.logits).clone(), held.features.clone()

    def _capture(self, rows: int, width: int, taps: tuple[int, ...]) -> Callable[[], None]:
        held = self._buffers.get((rows, taps)) or self._buffers_of(rows, taps)

        def work() -> None:
            places = self._start + torch.arange(rows, device=held.ids.device)
            logits, features = self.forward.run_at(held.ids, places, width, taps)
            held.logits.copy_(logits)
            held.features.copy_(features)

        self._start.zero_()
        return self.recorder.capture(work)

    def _buffers_of(self, rows: int, taps: tuple[int, ...]) -> _Buffers:
        """Buffers in the shapes of a run that is made for this."""
        places = torch.arange(rows, device=self._start.device)
        ids = torch.zeros_like(places)
        found = self._buffers[rows, taps] = _Buffers(ids, *self.forward.run_at(ids, places, rows, taps))
        return found


def _widths(least: int, capacity: int) -> list[int]:
    """Powers of two times `least` below `capacity`, and `capacity`."""
    widths = []
    while least < capacity:
        widths.append(least)
        least *= 2
    return [*widths, capacity]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no message").split("\n", maxsplit=1)[0]
