"""Which machine and which software made a run, and the name under which its results are kept.

Nothing in here names the host, the user or a folder of theirs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import threading
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from draftboard.record.records import Environment

_SPEED_FLAGS = re.compile(r"(avx|amx|sve|asimd|fma)\w*|bf16|f16c")
_CPU_NAME_KEYS = ("model name", "cpu model", "Model", "Hardware")
_CODE = ("harness", "drafters", "tasks", "pyproject.toml", "constraints.txt")
_HERE = Path(__file__).resolve()


def read_environment(
    device: str, device_type: str, device_count: int, threads: int, cuda: str | None
) -> Environment:
    """The machine as it is now. What cannot be read is None, an empty name or no flags; never an error.

    `device` is the product name of what computes, `device_type` "cpu" or "cuda", `threads` the CPU threads
    of the computation, `cuda` the toolkit's version.
    """
    cpu, flags = read_cpu()
    gpu = read_gpu(device) if device_type == "cuda" else GpuFacts()
    sha, dirty = read_checkout(_HERE)
    return Environment(
        device=device,
        device_type=device_type,
        device_count=device_count,
        cpu=cpu,
        cpu_cores=usable_cores(),
        cpu_flags=flags,
        threads=threads,
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
        numpy=_version("numpy"),
        driver=gpu.driver,
        cuda=cuda,
        power_limit_w=gpu.power_limit_w,
        draftboard=_version("draftboard"),
        git_sha=sha,
        git_dirty=dirty,
        driver_missing=gpu.missing,
    )


def fingerprint(environment: Environment, dtype: str) -> str:
    """Twelve hex digits of what decides speed: hardware, dtype, threads, library versions, driver.

    Two runs with one fingerprint may be compared. Our own commit is left out, since comparing commits is
    what runs are for; so is the memory's size, which differs by a little from boot to boot.
    """
    e = environment
    hardware = [e.device, e.device_type, e.device_count, e.cpu, e.cpu_cores, e.cpu_flags, e.power_limit_w]
    software = [e.python, e.torch, e.transformers, e.numpy, e.driver, e.cuda]
    text = json.dumps([hardware, dtype, e.threads, software])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def testbed(environment: Environment, dtype: str) -> str:
    """The readable folder name of one fingerprint, such as `amd-epyc-2t-float32-1a2b3c4d`.

    A CPU is followed by its threads (`2t`), anything else by the number of devices (`1x`).
    """
    e = environment
    name = re.sub(r"\((r|tm|c)\)", "", e.device.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:40].rstrip("-") or "unknown"
    size = f"{e.threads}t" if e.device_type == "cpu" else f"{e.device_count}x"
    return f"{slug}-{size}-{dtype}-{fingerprint(e, dtype)[:8]}"


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, tuple[str, ...]]:
    """The CPU's product name and those of its flags that change numerics or speed.

    From Linux's `cpuinfo`; elsewhere the name comes from the operating system and no flags are known.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return _cpu_name_elsewhere(), ()
    facts: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        facts.setdefault(key.strip(), value.strip())
    name = next((facts[key] for key in _CPU_NAME_KEYS if facts.get(key)), "")
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return name or _cpu_name_elsewhere(), tuple(sorted(f for f in flags if _SPEED_FLAGS.fullmatch(f)))


def _cpu_name_elsewhere() -> str:
    named = _output("sysctl", "-n", "machdep.cpu.brand_string") if platform.system() == "Darwin" else None
    return named or platform.processor() or platform.machine() or "unknown"


def usable_cores() -> int:
    """Logical CPUs this process may run on, fewer than the machine's inside many containers."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else psutil.cpu_count() or 1


class GpuFacts(NamedTuple):
    """What the GPU's driver says of itself."""

    driver: str | None = None
    power_limit_w: float | None = None
    missing: str | None = None
    """Why something above is unknown, where the driver failed or did not answer."""


def read_gpu(device: str, limit_s: float = 10.0) -> GpuFacts:
    """The driver's version, and the power limit that all GPUs named `device` share, else None.

    Going by name needs no index, and the driver counts GPUs otherwise than CUDA_VISIBLE_DEVICES does.
    A driver that takes longer than `limit_s` seconds is given up: its thread is left behind and ends with us.
    """
    answers: list[GpuFacts] = []
    reader = threading.Thread(target=lambda: answers.append(_ask_driver(device)), daemon=True)
    reader.start()
    reader.join(limit_s)
    return answers[0] if answers else GpuFacts(missing=f"the driver did not answer within {limit_s:g} s")


def _ask_driver(device: str) -> GpuFacts:
    driver, limits, missing = None, set(), None
    # Whatever a driver, a stale library or another module of this name does, measuring goes on.
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            same = [gpu for gpu in gpus if _text(nvml.nvmlDeviceGetName(gpu)) == device]
            limits = {nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000 for gpu in same}
        finally:
            nvml.nvmlShutdown()
    except Exception as error:
        missing = f"{type(error).__name__}: {error}"
    return GpuFacts(driver, limits.pop() if len(limits) == 1 else None, missing)


def _text(value: str | bytes) -> str:
    """NVML's bindings answer bytes or text by their age."""
    return value.decode() if isinstance(value, bytes) else value


def read_checkout(file: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that tracks `file`, and whether code or prompts differ from it.

    (None, None) outside a checkout: a package installed below somebody else's repository is not part of it.
    """
    folder = str(file.parent)
    if _output("git", "-C", folder, "ls-files", "--error-unmatch", file.name) is None:
        return None, None
    sha = _output("git", "-C", folder, "rev-parse", "HEAD")
    root = _output("git", "-C", folder, "rev-parse", "--show-toplevel")
    if sha is None or root is None:
        return None, None
    changes = _output("git", "-C", root, "status", "--porcelain", "--", *_CODE)
    return sha, None if changes is None else bool(changes)


def _output(*command: str) -> str | None:
    """What a command prints, stripped, or None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
