"""What this machine is, in torch's words, and whether somebody else was using it."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import torch

from draftboard.measure.telemetry.request import GpuRef
from draftboard.record.environment import read_cpu, read_environment, usable_cores
from draftboard.record.records import Environment

BUSY_SHARE = 0.1
"""Share of our cores' time that other processes may use before a run's times are called disturbed."""


def environment(device: torch.device) -> Environment:
    """The environment of a run on `device`."""
    cuda = device.type == "cuda"
    return read_environment(
        device=torch.cuda.get_device_name(device) if cuda else read_cpu()[0],
        device_type=device.type,
        device_count=1,
        threads=torch.get_num_threads(),
        cuda=torch.version.cuda if cuda else None,
    )


def gpus_of(device: torch.device) -> tuple[GpuRef, ...]:
    """The GPU that `device` is, in terms that no setting of CUDA can turn into another; none on a CPU."""
    if device.type != "cuda":
        return ()
    facts: Any = torch.cuda.get_device_properties(device)  # what it tells differs from version to version
    uuid, pci = getattr(facts, "uuid", None), None
    if hasattr(facts, "pci_bus_id"):
        pci = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    mig = first if first.startswith("MIG-") else None  # a process never sees more than one slice
    return (GpuRef(facts.name, str(uuid) if uuid else None, pci, facts.total_memory, mig),)


class BusyMeter:
    """How much of the cores that we may use other processes used since this was made."""

    def __init__(self) -> None:
        self._begun, self._all, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def reasons(self) -> tuple[str, ...]:
        """Why the run's times should not be trusted; nothing when the machine was quiet."""
        passed = (time.monotonic() - self._begun) * usable_cores()
        others = (_busy_seconds() - self._all) - (_own_seconds() - self._own)
        share = others / passed if passed else 0.0
        if share <= BUSY_SHARE:
            return ()
        return (f"other processes used {share:.0%} of the processor during the run",)


def _busy_seconds() -> float:
    """Seconds that the cores which we may use spent working, over all processes."""
    cores = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(len(cores)))
    # Where a core is switched off, the list has gaps that it does not tell, and all cores must do.
    counted = [cores[core] for core in ours] if max(ours) < len(cores) == os.cpu_count() else cores
    return float(sum(map(_working, counted)))


def _working(times: Any) -> float:
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0)
    return float(sum(times) - idle)


def _own_seconds() -> float:
    """Seconds of processor this process has used."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
