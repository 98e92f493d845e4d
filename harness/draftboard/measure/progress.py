"""What a person sees while a run is measured: a bar with the time left and the speedups so far.

In a terminal both are redrawn in place; elsewhere (a log, CI) a plain line appears now and then. The figures
are running totals, meant to show that the run is alive; results come from the finished record.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from draftboard.measure.events import Event, Failed, Note, Ready, Replied
from draftboard.record.records import Trace

PLAIN_EVERY_S = 10.0
"""Seconds between two lines where nothing can be redrawn."""


@dataclass(slots=True)
class Tally:
    """Running totals of one arm."""

    label: str
    error: str | None = None
    emitted: int = 0
    rounds: int = 0
    decode_ms: float = 0.0

    def add(self, trace: Trace) -> None:
        """Counts one reply."""
        self.emitted += trace.emitted
        self.rounds += len(trace.rounds) if trace.rounds is not None else 0
        self.decode_ms += trace.decode_ms

    @property
    def ms_per_token(self) -> float | None:
        """Decode time per emitted token, None before there is one."""
        return self.decode_ms / self.emitted if self.emitted else None


@dataclass(slots=True)
class Progress:
    """Follows one run. Use as a context manager and hand it to the runner as its watcher."""

    console: Console
    title: str = ""
    tallies: list[Tally] = field(default_factory=list)
    baseline: int = 0
    _bar: Bar | None = None
    _live: Live | None = None
    _said: float = 0.0

    def __enter__(self) -> Progress:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Bar(*columns, TextColumn("left"), TimeRemainingColumn(), console=self.console)
        self._bar.add_task(f"{self.title}: loading", total=None)
        if self.console.is_terminal:
            self._live = Live(self._picture(), console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._picture())
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Takes one event of the run."""
        if isinstance(event, Ready):
            self._begin(event)
        elif isinstance(event, Replied):
            self.tallies[event.arm].add(event.trace)
            self._step()
        elif isinstance(event, Failed):
            self._fail(event)
        elif isinstance(event, Note):
            self._describe(event.text)
        if self._live is not None:
            self._live.update(self._picture())

    def _begin(self, event: Ready) -> None:
        self.baseline = event.baseline
        self.tallies = [Tally(label, event.errors.get(i)) for i, label in enumerate(event.labels)]
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], total=event.replies, completed=0)
        self._describe("replies")
        for tally in self.tallies:
            if tally.error is not None:
                self.console.print(f"{self.title}: {tally.label} failed: {tally.error}", markup=False)

    def _step(self) -> None:
        assert self._bar is not None
        self._bar.advance(self._bar.task_ids[0])
        if self._live is None and time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            self.console.print(self._line(), markup=False, soft_wrap=True)

    def _fail(self, event: Failed) -> None:
        label = self.tallies[event.arm].label if self.tallies else f"arm {event.arm}"
        if self.tallies:
            self.tallies[event.arm].error = event.error
        self.console.print(f"{self.title}: {label} failed: {event.error}", markup=False)

    def _describe(self, text: str) -> None:
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], description=f"{self.title}: {text}")
        if self._live is None:
            self.console.print(f"{self.title}: {text}", markup=False)

    def speedup(self, tally: Tally) -> float | None:
        """Time per token of the baseline over that of an arm, so far."""
        own = self.tallies[self.baseline].ms_per_token
        return own / tally.ms_per_token if own and tally.ms_per_token else None

    def _line(self) -> str:
        assert self._bar is not None
        task = self._bar.tasks[0]
        left = "" if task.time_remaining is None else f", about {task.time_remaining:.0f} s left"
        speeds = ((tally.label, self.speedup(tally)) for tally in self.tallies)
        shown = ", ".join(f"{label} {speed:.2f}x" for label, speed in speeds if speed is not None)
        done = f"{self.title}: {task.completed:.0f}/{task.total:.0f} replies{left}"
        return f"{done}; so far {shown}" if shown else done

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("arm", "tok/s", "acceptance length", "speedup so far"):
            table.add_column(name, justify="left" if name == "arm" else "right")
        for tally in self.tallies:
            table.add_row(*self._cells(tally))
        assert self._bar is not None
        return Group(self._bar, table)

    def _cells(self, tally: Tally) -> tuple[str, str, str, str]:
        if tally.error is not None:
            return tally.label, "", "", "[red]failed[/red]"
        speed, ms = self.speedup(tally), tally.ms_per_token
        return (
            tally.label,
            "–" if ms is None else f"{1000 / ms:.1f}",
            "–" if not tally.rounds else f"{tally.emitted / tally.rounds:.2f}",
            "–" if speed is None else f"{speed:.2f}x",
        )
