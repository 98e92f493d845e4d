"""Drives the NVML back end in an interpreter of its own: a line of scenarios in, a line of windows out, JSON.

A scenario dictates the stand-in library's readings and the moments of the clock, so nothing here waits.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftboard.measure.telemetry.nvml import NvmlBackend
from draftboard.measure.telemetry.process import Windows
from draftboard.measure.telemetry.request import GpuRef
from draftboard.record.codec import to_json

STALLED_US = ctypes.c_uint64.in_dll(ctypes.CDLL("libnvidia-ml.so.1"), "fake_stalled_us")
"""What calls have taken of time by the stand-in, which does not wait."""

OWN_PID = 100000
"""The first process in the stand-in's list, unless FAKE_PID names another."""


def drive(gpus: list[dict[str, Any]], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """One backend from opening to closing; a step is a moment, what happens then, and readings dictated."""
    STALLED_US.value = 0
    private = bool(os.environ.get("FAKE_PRIVATE"))
    backend = NvmlBackend([GpuRef(**gpu) for gpu in gpus], OWN_PID, private=private)
    windows, found = Windows([backend], 1.0), []
    for step in steps:
        _set_clock(step["at"])
        os.environ.update(step.get("env", {}))
        window = getattr(windows, step["do"])()
        if window is not None:
            found.append(to_json(window))
    software = backend.software
    backend.close()
    return {"windows": found, "software": software}


def _set_clock(at: float) -> None:
    """Both clocks of this interpreter and the library's, for a moment of the monotonic one."""
    wall = 1_800_000_000 + at
    time.monotonic = lambda: at + STALLED_US.value / 1e6
    time.time = lambda: wall + STALLED_US.value / 1e6
    os.environ["FAKE_NOW_US"] = str(int(wall * 1e6))


@contextmanager
def dictated(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    yield
    os.environ.clear()
    os.environ.update(before)


def answer(scenario: dict[str, Any]) -> dict[str, Any]:
    with dictated(scenario["env"]):
        return drive(scenario["gpus"], scenario["steps"])


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([answer(scenario) for scenario in json.loads(line)]), flush=True)
