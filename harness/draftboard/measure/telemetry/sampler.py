"""The measuring process's end of telemetry. Its errors are `SamplerError`s; whoever uses it records them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import draftboard
from draftboard.measure.telemetry.request import Broken, Command, Request, Started
from draftboard.record.telemetry import Window

START_TIMEOUT_S = 30.0
"""A driver asleep can take seconds; one that hangs for good must not hold a run up for longer."""
ANSWER_TIMEOUT_S = 10.0
END_TIMEOUT_S = 1.0
_TAIL_BYTES = 4096

_SOURCES = Path(draftboard.__file__).resolve().parents[1]


class SamplerError(Exception):
    """The sampling process could not do its work; the message says what happened."""


class Sampler:
    """A process that samples devices within windows. Use as a context manager.

    Raises SamplerError when it does not start or answer; after that it stays closed.
    """

    def __init__(self, request: Request, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._connection, theirs = Pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._process = _start(theirs, self._printed)
        theirs.close()
        self._tell(request)
        started = self._hear(start_timeout_s)
        assert isinstance(started, Started)
        self.software = started.software

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self) -> None:
        """Opens a window; when this returns, its first edge has been read."""
        self._ask("begin")

    def end(self) -> Window:
        """Closes the window."""
        window = self._ask("end")
        assert isinstance(window, Window)
        return window

    def close(self) -> None:
        """Ends the process; safe to call again. One that a driver holds even when killed is left behind."""
        self._connection.close()
        self._printed.close()
        if not self._has_ended():
            self._process.kill()
            self._has_ended()

    def _has_ended(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_TIMEOUT_S)
        return self._process.returncode is not None

    def _ask(self, command: Command) -> Any:
        self._tell(command)
        return self._hear(ANSWER_TIMEOUT_S)

    def _tell(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._ended() from None

    def _hear(self, timeout_s: float) -> Any:
        try:
            answer = self._connection.recv() if self._connection.poll(timeout_s) else None
        except (EOFError, OSError):
            raise self._ended() from None
        if answer is None or isinstance(answer, Broken):
            self.close()
            late = f"the sampling process did not answer within {timeout_s:g} s"
            raise SamplerError(late if answer is None else f"the sampling process broke: {answer.reason}")
        return answer

    def _ended(self) -> SamplerError:
        self._has_ended()  # what it prints at the last is written by then
        said = _last_line(self._printed)
        self.close()
        code = f"the sampling process ended with code {self._process.returncode}"
        return SamplerError(f"{code}: {said}" if said else code)


class NullSampler:
    """Samples nothing: every window is refused with one reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.software: dict[str, str] = {}

    def begin(self) -> None:
        """Raises SamplerError with the reason."""
        raise SamplerError(self.reason)

    def end(self) -> Window:
        """Raises SamplerError with the reason."""
        raise SamplerError(self.reason)

    def close(self) -> None:
        """Nothing to end."""


def open_sampler(request: Request, start_timeout_s: float = START_TIMEOUT_S) -> Sampler | NullSampler:
    """A sampler for the request; one that refuses every window where none can be had."""
    try:
        return Sampler(request, start_timeout_s)
    except (SamplerError, OSError) as error:
        return NullSampler(str(error))


def _last_line(printed: IO[bytes]) -> str:
    """The last line with something on it that a process wrote to a file."""
    if printed.closed:
        return ""
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = printed.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _start(theirs: Connection, printed: IO[bytes]) -> subprocess.Popen[bytes]:
    """A fresh interpreter. What drivers and libraries print is dropped, but for the errors' last line."""
    paths = [str(_SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    fd = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "draftboard.measure.telemetry.process", str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=printed,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
