"""How each quantity of a GPU is read, best way first.

Millijoules, milliwatts and kilobytes become joules, watts and bytes here and only here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml as nvml

from draftboard.measure.telemetry import quantities as q
from draftboard.measure.telemetry.channel import Polled, Quantity
from draftboard.measure.telemetry.gpus import Found
from draftboard.measure.telemetry.reading import Explain, NothingNew, Point, Way

_DRAIN_S = 1.0
"""The driver's buffers hold many seconds, and its PCIe counters take a while to read."""

PLAIN_POWER = "polled: averaged over 1 s on Ampere (except GA100) or newer, instantaneous on GA100 and older"
"""What nvmlDeviceGetPowerUsage answers."""

_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t by nvmlValueType_t."""


def channels(found: Found, pid: int, private: bool, explain: Explain) -> Iterator[Polled]:
    """A channel for everything that is polled. A slice has numbers of its own and others of its card. For
    `pid` and `private` see `foreign`."""
    own, card = found.handle, found.card
    yield Polled(q.GPU_BUSY, _busy(own, nvml.NVML_GPU_UTILIZATION_SAMPLES, "gpu"), explain)
    yield Polled(q.MEMORY_BUSY, _busy(own, nvml.NVML_MEMORY_UTILIZATION_SAMPLES, "memory"), explain)
    yield Polled(q.POWER, _power(card), explain)
    joules = _polled("counter", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000)
    yield Polled(q.ENERGY, [joules], explain)
    for quantity, ways in _simple(own, card):
        yield Polled(quantity, ways, explain)
    yield Polled(q.FOREIGN, _strangers(own, pid, private), explain)


def _simple(own: Any, card: Any) -> Iterator[tuple[Quantity, list[Way]]]:
    def clock(kind: int) -> Way:
        return _polled("polled", lambda: nvml.nvmlDeviceGetClockInfo(card, kind))

    def pcie(counter: int) -> Way:
        return _polled("polled", lambda: nvml.nvmlDeviceGetPcieThroughput(card, counter) * 1000, _DRAIN_S)

    yield q.SM_CLOCK, [clock(nvml.NVML_CLOCK_SM)]
    yield q.MEMORY_CLOCK, [clock(nvml.NVML_CLOCK_MEM)]
    sensor = nvml.NVML_TEMPERATURE_GPU
    yield q.TEMPERATURE, [_polled("polled", lambda: nvml.nvmlDeviceGetTemperature(card, sensor))]
    yield (
        q.CLOCK_REASONS,
        [
            _polled("event reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(card)),
            _polled("throttle reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)),
        ],
    )
    yield (
        q.MEMORY_USED,
        [
            _polled("without reserve", lambda: nvml.nvmlDeviceGetMemoryInfo(own, nvml.nvmlMemory_v2).used),
            _polled("with the driver's reserve", lambda: nvml.nvmlDeviceGetMemoryInfo(own).used),
        ],
    )
    yield q.PCIE_SENT, [pcie(nvml.NVML_PCIE_UTIL_TX_BYTES)]
    yield q.PCIE_RECEIVED, [pcie(nvml.NVML_PCIE_UTIL_RX_BYTES)]


def _strangers(handle: Any, pid: int, private: bool) -> list[Way]:
    def way(source: str, call: Callable[[Any], Sequence[Any]]) -> Way:
        return _polled(source, lambda: foreign([one.pid for one in call(handle)], pid, private))

    return [
        way("process list", lambda own: nvml.nvmlDeviceGetComputeRunningProcesses(own)),
        way("older list", lambda own: nvml.nvmlDeviceGetComputeRunningProcesses_v2(own)),
    ]


def foreign(listed: Sequence[int | None], own: int, private: bool) -> int:
    """How many processes in the driver's list of those that compute are not `own`, which does.

    Raises NothingNew with the reason where the list cannot tell. In a container the driver gives ids of the
    machine, hides them or leaves processes out: then ours is not in the list or is alone in it, and who else
    computes is not known. `private` says that ids here are of a namespace of its own.
    """
    if own not in listed:
        raise NothingNew(
            f"the driver's list of processes does not hold ours, {own}: in a container it need not"
        )
    if not all(listed):
        raise NothingNew("the driver's list of processes hides the id of one")
    others = len(set(listed)) - 1
    if private and not others:
        raise NothingNew(
            "in a container the driver's list of processes may hold ours alone, whoever else computes"
        )
    return others


def _polled(source: str, read: Callable[[], float], every_s: float = 0.0) -> Way:
    return Way(source, lambda now: [(now, float(read()))], every_s)


def _busy(handle: Any, kind: int, member: str) -> list[Way]:
    polled = _polled("polled", lambda: getattr(nvml.nvmlDeviceGetUtilizationRates(handle), member))
    return [Way("driver's samples", _Samples(handle, kind).read, _DRAIN_S), polled]


class _Samples:
    """The driver's ring buffer of one gauge, which is stamped by the wall clock in microseconds."""

    def __init__(self, handle: Any, kind: int) -> None:
        self._handle, self._kind, self._seen, self._any = handle, kind, 0, False

    def read(self, now: float) -> list[Point]:
        """What is new since the last read. Raises NVMLError when there never was anything."""
        try:
            kind, samples = nvml.nvmlDeviceGetSamples(self._handle, self._kind, self._seen)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_FOUND and self._any:
                raise NothingNew from None
            raise
        self._any = True
        self._seen = max([self._seen, *(sample.timeStamp for sample in samples)])
        offset, member = time.monotonic() - time.time(), _VALUE_FIELDS[kind]
        return [(s.timeStamp / 1e6 + offset, float(getattr(s.sampleValue, member))) for s in samples]


def _power(card: Any) -> list[Way]:
    """The value of this instant; what the plain call means depends on the GPU (NVIDIA's reference of
    nvmlDeviceGetPowerUsage)."""

    def instant() -> float:
        (value,) = nvml.nvmlDeviceGetFieldValues(card, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return float(getattr(value.value, _VALUE_FIELDS[value.valueType])) / 1000

    plain = _polled(PLAIN_POWER, lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000)
    return [_polled("instant", instant), plain]
