"""Work of few rows as CUDA graphs: one launch where the eager code makes hundreds.

A graph repeats the kernels of one run on the same memory. So there is one for each piece of work, in the
target's case a number of rows and a set of taps, and each width of the cache (powers of two); what changes
from round to round lies in buffers: the inputs, and the position of the first row. Graphs of one owner share
a pool of memory, since no two run at once and nothing of one run is read after the next but what was copied
out.

Capturing takes a while and happens before the clock starts. Where it fails, eager code goes on alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from draftboard.measure.fused import FusedForward
from draftboard.record.records import CAPTURE_FAILED as FAILED

LEAST_WIDTH = 256
"""Positions that the narrowest graph sees; every further one sees twice as many."""

UNTRIED = "nothing has been captured yet"
NO_GPU = "not on a GPU"

_TRIALS = 2
"""Runs before a capture: libraries choose kernels and allocate workspaces in the first ones."""

Results = tuple[Any, ...]
"""Tensors, and None in the place of one that a method does not have."""


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


def recorder_for(device: torch.device) -> Recorder | None:
    """CUDA's on a GPU; None elsewhere, where nothing is captured."""
    return CudaRecorder(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Work to be captured. It stands somewhere in a cache and does not know where."""

    key: Hashable
    """What it is asked for by."""
    work: Callable[..., Results]
    """`work(start, width, *inputs)`: its first row stands at `start`, int64 [] on the device, and it sees the
    first `width` cached positions. It must not read a tensor as a number."""
    inputs: tuple[Tensor, ...]
    """Examples of what changes beside the start, of the right shapes; they become the buffers."""
    rows: int
    """Positions that it takes, from `start` on."""
    sees: bool = True
    """Whether it reads the cache: only then is there a graph for each width."""


@dataclass(frozen=True, slots=True)
class _Captured:
    """The graphs of one piece, narrowest first, and the memory that all of them read from and write to."""

    inputs: tuple[Tensor, ...]
    outputs: Results
    widths: list[int]
    graphs: list[Callable[[], None]]


class Replays:
    """Pieces of work over one cache, replayed from graphs where there are some."""

    def __init__(
        self, device: torch.device, capacity: int, recorder: Recorder | None, least_width: int = LEAST_WIDTH
    ) -> None:
        """For a cache of `capacity` positions on `device`. Without a recorder there will be no graphs."""
        self.recorder, self.widths = recorder, _widths(least_width, capacity)
        self.missing: str | None = NO_GPU if recorder is None else UNTRIED
        """Why there are no graphs; None where there are."""
        self._failed = False
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._captured: dict[Hashable, _Captured] = {}

    @classmethod
    def on(cls, device: torch.device, capacity: int) -> Replays:
        """With CUDA graphs where the device has them."""
        return Replays(device, capacity, recorder_for(device), LEAST_WIDTH)

    @property
    def count(self) -> int | None:
        """Graphs that there are; None for none, and `missing` says why."""
        return sum(len(one.graphs) for one in self._captured.values()) or None

    def wants(self, key: Hashable) -> bool:
        """Whether a piece called `key` would be captured: not yet, and nothing stands in the way."""
        return self.recorder is not None and not self._failed and key not in self._captured

    def capture(self, pieces: Iterable[Piece]) -> None:
        """Captures the pieces that are wanted, wherever in the cache they will stand.

        The cache must be empty: trial runs write to its first positions. After a failure nothing is captured
        any more, what was is dropped, and `missing` says why.
        """
        try:
            for piece in pieces:
                if self.wants(piece.key):
                    self._captured[piece.key] = self._capture(piece)
            self.missing = None if self.count else self.missing
        except RuntimeError as error:
            self._failed = True
            self._captured.clear()
            self.missing = f"{FAILED}: {type(error).__name__}: {_first_line(error)}"

    def find(self, key: Hashable, stop: int) -> Callable[..., Results] | None:
        """What repeats a piece that ends before position `stop`; None where it must be run eagerly.

        It takes the position of the first row and the inputs. What it returns is the caller's own: no later
        run changes it.
        """
        one = self._captured.get(key)
        at = 0 if one is None else bisect_left(one.widths, stop)
        return None if one is None or at == len(one.widths) else partial(self._repeat, one, one.graphs[at])

    def _repeat(self, one: _Captured, graph: Callable[[], None], start: int, *inputs: Tensor) -> Results:
        self._start.fill_(start)
        for held, given in zip(one.inputs, inputs, strict=True):
            held.copy_(given)
        graph()
        return _own(one.outputs)

    def _capture(self, piece: Piece) -> _Captured:
        assert self.recorder is not None
        widths = [width for width in self.widths if width >= piece.rows]
        widths = widths if piece.sees else widths[-1:]
        self._start.zero_()
        inputs = _own(piece.inputs)
        outputs = _own(piece.work(self._start, piece.rows, *inputs))

        def work(width: int) -> None:
            for held, found in zip(outputs, piece.work(self._start, width, *inputs), strict=True):
                if held is not None:
                    held.copy_(found)

        graphs = [self.recorder.capture(partial(work, width)) for width in widths]
        return _Captured(inputs, outputs, widths, graphs)


class Graphs(Replays):
    """A fused forward, replayed from graphs where there is one for what is asked, else run eagerly."""

    def __init__(self, forward: FusedForward, recorder: Recorder, least_width: int) -> None:
        super().__init__(forward.embedding.device, forward.cache.capacity, recorder, least_width)
        self.forward = forward

    def prepare(self, rows: Iterable[int], taps: tuple[int, ...]) -> None:
        """Captures what forwards of these numbers of rows will need; see `capture`."""
        self.capture(self._piece(m, taps) for m in rows if self.wants((m, taps)))

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """As `FusedForward.run`. What it returns is the caller's own: no later run changes it."""
        place = self.forward.cache.reserve(len(ids))
        replay = self.find((len(ids), taps), place.stop)
        if replay is None:
            return self.forward.run(ids, taps, last_only)
        logits, features = replay(place.start, ids)
        self.forward.cache.length = place.stop
        return logits[-1:] if last_only else logits, features

    def _piece(self, rows: int, taps: tuple[int, ...]) -> Piece:
        blank = torch.zeros(rows, dtype=torch.int64, device=self.forward.embedding.device)

        def work(start: Tensor, width: int, ids: Tensor) -> Results:
            return self.forward.run_at(ids, start + torch.arange(rows, device=ids.device), width, taps)

        return Piece((rows, taps), work, (blank,), rows)


def _own(tensors: Results) -> Results:
    """Copies that nobody else writes to."""
    return tuple(None if tensor is None else tensor.clone() for tensor in tensors)


def _widths(least: int, capacity: int) -> list[int]:
    """Powers of two times `least` below `capacity`, and `capacity`."""
    widths = []
    while least < capacity:
        widths.append(least)
        least *= 2
    return [*widths, capacity]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no message").split("\n", maxsplit=1)[0]
