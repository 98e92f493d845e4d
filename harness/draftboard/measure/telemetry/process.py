"""The sampling process: reads every device at a steady pace and answers its parent over a pipe.

`python -m draftboard.measure.telemetry.process <file descriptor>`. It ends with its parent, and shares
neither interpreter lock nor CUDA context with the loop that is being measured.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from draftboard.measure.telemetry.channel import Backend
from draftboard.measure.telemetry.cpu import CpuBackend
from draftboard.measure.telemetry.request import Broken, Request, Started
from draftboard.record.telemetry import DeviceWindow, Window

_MACHINES_IDS = 0xEFFFFFFC
"""The inode of the namespace that Linux starts with (PROC_PID_INIT_INO of include/linux/proc_ns.h)."""


def open_backends(request: Request) -> list[Backend]:
    """The processor, and the GPUs where there are some."""
    backends: list[Backend] = [CpuBackend(request.pid)]
    if request.gpus:
        from draftboard.measure.telemetry.nvml import NvmlBackend

        backends.append(NvmlBackend(request.gpus, request.pid, private=_has_own_ids()))
    return backends


def _has_own_ids(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Whether process ids here are not the machine's, as in a container. Only Linux has such namespaces."""
    try:
        return namespace.stat().st_ino != _MACHINES_IDS
    except OSError:
        return False


class Windows:
    """Opens, feeds and closes windows over all devices of some back ends."""

    def __init__(self, backends: Sequence[Backend], period_s: float) -> None:
        self.period_s = period_s
        self._devices = [device for backend in backends for device in backend.devices]
        channels = [channel for device in self._devices for channel in device.channels]
        self._channels = sorted(channels, key=lambda channel: not channel.edges)
        self._begun = self._cpu = 0.0

    def begin(self) -> None:
        """Opens a window, after all that may be slow at its edge. This also finds out which ways of reading
        work, and leaves those that are slow."""
        for channel in self._channels:
            channel.drain(time.monotonic())
        self._begun, self._cpu = time.monotonic(), time.process_time()
        for channel in self._channels:
            channel.begin(self._begun)

    def poll(self) -> None:
        """Reads whatever is polled."""
        now = time.monotonic()
        for channel in self._channels:
            channel.poll(now)

    def end(self) -> Window:
        """Closes the window and gives what it saw. Its edge is read before the gauges, which may be slow."""
        now = time.monotonic()
        for channel in self._channels:
            channel.end(now)
        devices = tuple(
            DeviceWindow(
                device.name,
                device.kind,
                device.uuid_sha256,
                {name: one for channel in device.channels for name, one in channel.series().items()},
                device.notes,
            )
            for device in self._devices
        )
        used = round(time.process_time() - self._cpu, 4)
        return Window(round(now - self._begun, 4), self.period_s, devices, used)


def serve(connection: Connection) -> None:
    """Takes the request, then commands until the parent is gone."""
    backends: list[Backend] = []
    try:
        request: Request = connection.recv()
        backends += open_backends(request)
        windows = Windows(backends, request.period_s)
        windows.begin()  # finds out which ways of reading work; too short to be read as a window
        connection.send(Started({k: v for backend in backends for k, v in backend.software.items()}))
        _follow(connection, windows)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send(Broken(f"{type(error).__name__}: {error}"))
    finally:
        for backend in backends:
            backend.close()


def _follow(connection: Connection, windows: Windows) -> None:
    is_open, due = False, 0.0
    while True:
        if not connection.poll(max(0.0, due - time.monotonic()) if is_open else None):
            due = time.monotonic() + windows.period_s
            windows.poll()
            continue
        is_open = connection.recv() == "begin"
        if is_open:
            windows.begin()
            due = time.monotonic() + windows.period_s
            connection.send(True)
        else:
            connection.send(windows.end())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide
    serve(Connection(int(sys.argv[1])))
