"""NVIDIA GPUs, by NVML: which can be read, and what its errors mean. `nvml_ways` says how they are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from draftboard.measure.telemetry.channel import Channel, Device, Unreadable
from draftboard.measure.telemetry.quantities import ALL
from draftboard.measure.telemetry.reading import Refusal
from draftboard.measure.telemetry.request import GpuRef
from draftboard.record.telemetry import DeviceKind


class NvmlBackend:
    """The GPUs that the process `pid` computes on. One that cannot be read is listed with the reason.
    `private`: that number is of a namespace of its own, as in a container."""

    def __init__(self, gpus: Sequence[GpuRef], pid: int, *, private: bool) -> None:
        self._open, self._pid, self._private = False, pid, private
        self.software: dict[str, str] = {}
        try:
            self.devices = self._devices(gpus)
        except Exception as error:
            self.devices = tuple(_unreadable(gpu, _explain(error)) for gpu in gpus)

    def _devices(self, gpus: Sequence[GpuRef]) -> tuple[Device, ...]:
        # Imported late: the module may be missing, or be another one of this name.
        import pynvml

        pynvml.nvmlInit()
        self._open = True
        self.software = _software()
        return tuple(_device(gpu, self._pid, self._private) for gpu in gpus)

    def close(self) -> None:
        """Lets NVML go, once."""
        if self._open:
            import pynvml

            self._open = False
            pynvml.nvmlShutdown()


def _device(gpu: GpuRef, pid: int, private: bool) -> Device:
    from draftboard.measure.telemetry import gpm, gpus, nvml_ways

    try:
        found = gpus.find(gpu)
    except Exception as error:
        return _unreadable(gpu, _explain(error))
    polled = nvml_ways.channels(found, pid, private, _explain)
    channels: list[Channel] = [*polled, gpm.Gpm(found, _explain)]
    kind: DeviceKind = "mig" if found.mig else "gpu"
    return Device(gpu.name, kind, gpus.uuid_hash(found.handle), channels, found.notes)


def _unreadable(gpu: GpuRef, refusal: Refusal) -> Device:
    return Device(gpu.name, "gpu", None, [Unreadable(ALL, refusal)])


def _software() -> dict[str, str]:
    import pynvml

    from draftboard.measure.telemetry.gpus import text

    versions = {
        "driver": lambda: text(pynvml.nvmlSystemGetDriverVersion()),
        "nvml": lambda: text(pynvml.nvmlSystemGetNVMLVersion()),
        "cuda_of_driver": lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2()),
    }
    return dict(_known(versions))


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _known(reads: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for name, read in reads.items():
        try:
            yield name, read()
        except Exception:  # a version that is not told is left out
            continue


_UNSUPPORTED = {3, 13, 24, 25, 26}
"""Not supported, function not found, frequency not supported, version of a struct unknown, deprecated."""
_NO_PERMISSION = 4


def _explain(error: Exception) -> Refusal:
    """The status of an NVML error; by number, since the classes of bindings differ."""
    code = getattr(error, "value", None)
    if isinstance(error, ImportError):
        return Refusal("error", f"the bindings are missing: {error}; pip install nvidia-ml-py")
    if isinstance(error, AttributeError) and hasattr(sys.modules.get("pynvml"), "nvmlInit"):
        return Refusal("unsupported", f"the bindings are too old: {error}; pip install -U nvidia-ml-py")
    if isinstance(error, AttributeError):
        return Refusal("error", f"the module pynvml is not NVIDIA's: {error}; pip install nvidia-ml-py")
    if code in _UNSUPPORTED:
        return Refusal("unsupported", str(error))
    if code == _NO_PERMISSION:
        return Refusal("no_permission", str(error))
    return Refusal("error", str(error) or type(error).__name__)
