"""Taking turns with another run on the same machine: a referee says when the next turn may begin.

A run whose environment names a socket asks there before each turn and once more after the last, and waits
for the answer. Waiting falls between replies, so no reply's time holds any of it.
"""

from __future__ import annotations

import os
import socket

from draftboard.errors import UserError

ADDRESS = "DRAFTBOARD_TURNSTILE"
"""The environment variable that names the referee's Unix socket."""
ASK, GO = b"?", b"!"


class Turnstile:
    """Open where there is no referee."""

    def __init__(self, address: str | None = None) -> None:
        self._line: socket.socket | None = None
        found = address or os.environ.get(ADDRESS)
        if found:
            self._line = socket.socket(socket.AF_UNIX)
            self._line.connect(found)

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
