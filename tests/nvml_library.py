"""Builds the stand-in for NVIDIA's library; drives the back end against it, by the bindings' own loader."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from draftboard.record.codec import from_json
from draftboard.record.telemetry import Series, Window

HERE = Path(__file__).parent
UUIDS = [f"0000000{i}-aaaa-bbbb-cccc-dddddddddddd" for i in range(4)]
MEMORY = 140_000_000_000


@cache
def library() -> str:
    """A folder that holds libnvidia-ml.so.1, compiled once a session."""
    folder = Path(mkdtemp(prefix="nvml"))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(HERE / "fake_nvml.c")], check=True)
    return str(folder)


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    """One of the four GPUs as torch would describe it."""
    return {"name": "Fake GPU", "uuid": UUIDS[index], "pci": None, "memory_bytes": MEMORY, **changes}


def scenario(*gpus: dict[str, Any], steps: list[dict[str, Any]] | None = None, **env: str) -> dict[str, Any]:
    """Ten seconds with a poll each, unless told otherwise."""
    polls = [{"at": 100.0 + i, "do": "poll"} for i in range(1, 10)]
    ten = [{"at": 100.0, "do": "begin"}, *polls, {"at": 110.0, "do": "end"}]
    return {"gpus": list(gpus) or [gpu()], "env": env, "steps": steps or ten}


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the stand-in where the loader looks first."""
    return {**os.environ, "LD_LIBRARY_PATH": library(), **changes}


def drive(*scenarios: dict[str, Any], **env: str) -> list[list[Window]]:
    """The windows of each scenario, driven in an interpreter of their own."""
    driver = _driver(tuple(sorted(env.items())))
    assert driver.stdin is not None and driver.stdout is not None
    driver.stdin.write(json.dumps(scenarios) + "\n")
    driver.stdin.flush()
    answer = driver.stdout.readline()
    assert answer, "the interpreter that drives the back end died; its traceback is in the captured output"
    return [[from_json(Window, w) for w in one["windows"]] for one in json.loads(answer)]


@cache
def _driver(env: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    """One interpreter for all scenarios that need no other surroundings; it ends with its input."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "nvml_drive.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**dict(env)),
    )
    assert process.stdin is not None
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    return process


def series(one: dict[str, Any], **env: str) -> dict[str, Series]:
    """The first device's series in the only window of a scenario."""
    ((window,),) = drive(one, **env)
    return window.devices[0].series
