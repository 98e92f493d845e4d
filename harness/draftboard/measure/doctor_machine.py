"""The doctor on the machine itself: device, dtypes, processor, memory, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from draftboard.measure.doctor import Line, Section, Subject
from draftboard.measure.embedded import default_cache
from draftboard.measure.loading import DTYPES, dtype_name
from draftboard.measure.machine import environment
from draftboard.record.environment import usable_cores
from draftboard.record.records import Environment

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
BUSY_LOAD = 0.2
"""Runnable processes per usable core beyond which a measurement shares the processor."""
ROOM_BYTES = 10e9
"""Disk that targets and results should find free."""


def sections(subject: Subject) -> Iterator[Section]:
    """What the machine is, before anything is timed."""
    here = environment(subject.device)
    yield Section("device", tuple(_device(subject, here)))
    yield Section("dtypes", tuple(_dtypes(subject)))
    yield Section("processor", tuple(_processor(here)))
    yield Section("memory and disk", tuple(_storage()))


def _device(subject: Subject, here: Environment) -> Iterator[Line]:
    yield Line("computes", f"{here.device} ({subject.device})")
    yield Line("software", f"python {here.python}, torch {here.torch}, transformers {here.transformers}")
    if subject.device.type != "cuda":
        yield Line("GPU", "none is used", "unknown")
        return
    free, total = torch.cuda.mem_get_info(subject.device)
    yield Line("memory", f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free")
    why = here.driver_missing or "see telemetry below"
    yield _or_unknown("driver", here.driver, f"NVIDIA's driver does not answer: {why}")
    yield Line("CUDA of torch", here.cuda or "unknown")
    limit = None if here.power_limit_w is None else f"{here.power_limit_w:.0f} W"
    yield _or_unknown("power limit", limit, "runs at another limit cannot be told from this one's")


def _or_unknown(name: str, value: str | None, advice: str) -> Line:
    return Line(name, value) if value is not None else Line(name, "not told", "unknown", advice)


def _dtypes(subject: Subject) -> Iterator[Line]:
    for name, dtype in DTYPES.items():
        chosen = " (used here)" if dtype == subject.dtype else ""
        try:
            one = torch.ones(8, 8, dtype=dtype, device=subject.device)
            right = bool((one @ one == 8).all())
            yield Line(name, f"works{chosen}" if right else "computes wrongly", "ok" if right else "warning")
        except RuntimeError as error:
            yield Line(name, str(error).split("\n", maxsplit=1)[0], "warning", "choose another --dtype")
    yield Line("auto", dtype_name(subject.dtype))


def _processor(here: Environment) -> Iterator[Line]:
    yield Line("name", here.cpu)
    few = here.threads < here.cpu_cores and here.device_type == "cpu"
    yield Line(
        "threads",
        f"{here.threads} of {here.cpu_cores} usable cores",
        "warning" if few else "ok",
        "set OMP_NUM_THREADS to the number of cores" if few else None,
    )
    yield Line("flags", " ".join(here.cpu_flags) or "not told", "ok" if here.cpu_flags else "unknown")
    yield _governor(GOVERNOR)
    yield _load(os.getloadavg()[0] / usable_cores())


def _governor(file: Path) -> Line:
    try:
        found = file.read_text().strip()
    except OSError:
        return Line("governor", "not told (usual in virtual machines and containers)", "unknown")
    if found == "performance":
        return Line("governor", found)
    advice = "clocks follow the load: sudo cpupower frequency-set -g performance"
    return Line("governor", found, "warning", advice)


def _load(per_core: float) -> Line:
    busy = per_core > BUSY_LOAD
    advice = "stop what else is running, or expect disturbed times" if busy else None
    return Line("load", f"{per_core:.2f} runnable processes a core", "warning" if busy else "ok", advice)


def _storage() -> Iterator[Line]:
    memory = psutil.virtual_memory()
    yield Line("memory", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available")
    cache = default_cache()
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    tight = free < ROOM_BYTES
    advice = "make room, or point DRAFTBOARD_CACHE and HF_HOME to another disk" if tight else None
    yield Line("disk", f"{free / 1e9:.1f} GB free for targets", "warning" if tight else "ok", advice)
    yield Line("cache", str(cache) if cache.exists() else f"{cache}, not there yet")
