"""Runs that take turns: one begins a turn only when the others rest, in an order drawn for each turn."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from draftboard.measure.turns import ASK, GO

Start = Callable[[str], subprocess.Popen[bytes]]
"""Starts a run whose turnstile is at the given address."""
_PATIENCE_S = 0.1
_GRACE_S = 30.0
"""How long a run may take to end when it is told to."""


class Contender:
    """One run's process and the line to the worker that measures in it just now."""

    def __init__(self, address: Path, start: Start) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(address))
        self._server.listen()
        self._server.settimeout(_PATIENCE_S)
        self._line: socket.socket | None = None
        self._asked = False
        self.process = start(str(address))

    def ready(self) -> bool:
        """Waits until the run asks for a turn; False when its process has ended instead."""
        while not self._asked:
            if self._line is not None:
                self._listen()
            elif self.process.poll() is not None:
                return False
            else:
                self._accept()
        return True

    def take_turn(self) -> None:
        """Lets the run go on until it asks again, or until its worker has ended."""
        assert self._line is not None
        self._asked = False
        with suppress(ConnectionError):  # a worker that died while it waited; the next reading finds the end
            self._line.sendall(GO)
        self._listen()

    def stop(self) -> None:
        """Ends the run if it still goes on, and its line."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for one in (self._line, self._server):
            if one is not None:
                one.close()

    def _accept(self) -> None:
        try:
            self._line, _ = self._server.accept()
        except TimeoutError:
            return

    def _listen(self) -> None:
        """Waits for the next question; a closed line means that the worker has ended."""
        assert self._line is not None
        try:
            self._asked = self._line.recv(1) == ASK
        except ConnectionError:
            self._asked = False
        if not self._asked:
            self._line.close()
            self._line = None


def take_turns(contenders: Sequence[Contender], seed: int) -> None:
    """Goes round until every run has ended. All must have asked before a turn begins, so that nobody still
    loads while another is timed."""
    dice = random.Random(seed)
    while waiting := [one for one in contenders if one.ready()]:
        for one in dice.sample(waiting, len(waiting)):
            one.take_turn()
