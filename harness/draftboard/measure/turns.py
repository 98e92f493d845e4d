"""Taking turns with another run on the same machine: a referee says when the next turn may begin.

A run whose environment names a socket asks there before each prefill, before each round and once more after
the last, and waits for the answer. What a machine's mood does to times lasts from tens of milliseconds to
minutes, so only turns as short as a round lay all of it on both runs alike. Waiting is in nobody's times.
"""

from __future__ import annotations

import os
import socket
import time

import torch

from draftboard.errors import UserError
from draftboard.measure.clock import Clock, Span

ADDRESS = "DRAFTBOARD_TURNS"
"""The environment variable that names the referee's Unix socket."""
ASK, GO = b"?", b"!"
BEGINNINGS = frozenset({"prefill", "draft"})
"""The spans that a turn begins with."""


class Turnstile:
    """Open where there is no referee."""

    def __init__(self, address: str | None = None) -> None:
        self._line: socket.socket | None = None
        found = address or os.environ.get(ADDRESS)
        if found:
            self._line = socket.socket(socket.AF_UNIX)
            self._line.connect(found)

    @property
    def open(self) -> bool:
        """Nobody is asked."""
        return self._line is None

    def wait(self) -> None:
        """Returns when the next turn may begin. Raises UserError when the referee is gone: times measured
        beside nobody would pass for paired ones."""
        if self._line is None:
            return
        try:
            self._line.sendall(ASK)
            answer = self._line.recv(1)
        except ConnectionError:
            answer = b""
        if answer != GO:
            raise UserError("the process that arranges the turns has ended; start the gate again")


class TurnClock(Clock):
    """A clock that stands still while the other run has its turn."""

    def __init__(self, device: torch.device, turnstile: Turnstile) -> None:
        super().__init__(device)
        self._turnstile = turnstile
        self._waited_ms = 0.0

    def span(self, name: str) -> Span:
        """A span of this run's own turn."""
        if name in BEGINNINGS:
            self._wait()
        return super().span(name)

    def now_ms(self) -> float:
        """Wall time less what was waited."""
        return super().now_ms() - self._waited_ms

    def _wait(self) -> None:
        began = super().now_ms()  # what is queued on the device belongs to the turn that ends
        self._turnstile.wait()
        self._waited_ms += time.perf_counter() * 1e3 - began
