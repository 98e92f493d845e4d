"""Which GPU is meant: from torch's description of it to the NVML handle.

NVML counts GPUs by PCI bus and ignores CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, so an index means nothing
to it. The UUID does; where torch does not tell it, the PCI address does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pynvml as nvml

from draftboard.measure.telemetry.request import GpuRef

MEMORY_SLACK = 0.1
"""Two drivers' views of one GPU's memory may differ by this share."""


@dataclass(frozen=True, slots=True)
class Found:
    """The handle of what computes, and that of the card it is part of; the same unless it is a MIG slice."""

    handle: Any
    card: Any
    mig: bool
    notes: tuple[str, ...]


class AnotherGpu(Exception):
    """NVML's device is not the one that torch described."""


def find(gpu: GpuRef) -> Found:
    """The NVML device of a GPU. Raises NVMLError when NVML does not know it, AnotherGpu when it is not it."""
    handle, by_uuid = _handle(gpu)
    mig = bool(_or(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle).value, 0))
    card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if mig else handle
    sliced = mig or bool(_or(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0))
    differs = None if sliced else _difference(gpu, handle)
    if differs and not by_uuid:
        raise AnotherGpu(differs)
    return Found(handle, card, mig, (*_notes(mig, sliced), *([differs] if differs else [])))


def _handle(gpu: GpuRef) -> tuple[Any, bool]:
    """The handle, and whether a UUID led to it, which no two devices share."""
    names = [gpu.mig] if gpu.mig else []
    names += [f"{prefix}{gpu.uuid}" for prefix in ("GPU-", "MIG-") if gpu.uuid]
    tries = [(nvml.nvmlDeviceGetHandleByUUID, name) for name in names]
    tries += [(nvml.nvmlDeviceGetHandleByPciBusId, gpu.pci)] if gpu.pci else []
    failure: Exception = AnotherGpu("torch tells neither its UUID nor its PCI address")
    for look_up, key in tries:
        try:
            return look_up(key), look_up is nvml.nvmlDeviceGetHandleByUUID
        except nvml.NVMLError as error:
            failure = error
    raise failure


def _difference(gpu: GpuRef, handle: Any) -> str | None:
    """How name and size disagree, if they do. Not for slices, which torch and NVML describe differently."""
    name = _or(lambda: text(nvml.nvmlDeviceGetName(handle)), gpu.name)
    total = _or(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total), gpu.memory_bytes)
    if name != gpu.name or abs(total - gpu.memory_bytes) > MEMORY_SLACK * gpu.memory_bytes:
        return f"torch sees {gpu.name} with {gpu.memory_bytes} bytes, NVML {name} with {total}"
    return None


def _notes(mig: bool, sliced: bool) -> tuple[str, ...]:
    if mig:
        return ("a MIG slice: power, energy, clocks and temperature are those of the whole card",)
    if sliced:
        return ("MIG is on and the slice is not known: what NVML answers is the whole card's",)
    return ()


def uuid_hash(handle: Any) -> str | None:
    """Twelve hex digits that tell this device from others and identify none; None where it has no UUID."""
    uuid = _or(lambda: text(nvml.nvmlDeviceGetUUID(handle)), None)
    return None if uuid is None else hashlib.sha256(uuid.encode()).hexdigest()[:12]


def text(value: str | bytes) -> str:
    """NVML's bindings answer bytes or text by their age."""
    return value.decode() if isinstance(value, bytes) else value


def _or(read: Any, otherwise: Any) -> Any:
    try:
        return read()
    except nvml.NVMLError:
        return otherwise
