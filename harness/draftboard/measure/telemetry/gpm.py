"""GPM: counters of Hopper and later, read at the two edges of a window and giving the mean between them.

No polling and no gaps. The driver asks for 100 ms at least between two readings of one device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml as nvml

from draftboard.measure.telemetry import quantities as q
from draftboard.measure.telemetry.channel import Quantity
from draftboard.measure.telemetry.gpus import Found
from draftboard.measure.telemetry.reading import SLOW_S, Explain, Refusal, slow
from draftboard.record.telemetry import Series

_METRICS = {
    q.SM_UTIL: nvml.NVML_GPM_METRIC_SM_UTIL,
    q.SM_OCCUPANCY: nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    q.TENSOR: nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    q.DRAM: nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


_APART_S = 0.1
"""Least seconds between two readings; what comes of closer ones is not defined."""
_FOR_GOOD = ("unsupported", "no_permission")


class Gpm:
    """Four quantities that are means over the window."""

    edges = True

    def __init__(self, found: Found, explain: Explain) -> None:
        self._found, self._explain = found, explain
        self._refusal: Refusal | None = None
        self._left = False
        self._samples: list[Any] = []
        self._begun = self._ended = 0.0
        self._values: dict[str, Series] = {}

    def drain(self, now: float) -> None:
        """Opens the counters. What failed is tried again, but for what the device or its owner refuses."""
        if not self._left:
            self._refusal = None
        self._try(self._open)

    def begin(self, now: float) -> None:
        self._begun, self._values = now, {}
        self._try(lambda: self._sample(0))

    def poll(self, now: float) -> None:
        """The counters run by themselves."""

    def end(self, now: float) -> None:
        self._ended = now
        self._try(self._finish)

    def series(self) -> dict[str, Series]:
        """One value per quantity, at the window's end."""
        why = self._refusal or Refusal("error", "no value came back")
        missing = {one.name: one.missing(why) for one in _METRICS}
        return {**missing, **self._values}

    def _try(self, step: Callable[[], None]) -> None:
        """A step of this window. After a failure there are no more; after a slow one never."""
        if self._refusal is not None:
            return
        began = time.monotonic()
        try:
            step()
        except Exception as error:
            self._refusal = self._explain(error)
        seconds = time.monotonic() - began
        if seconds > SLOW_S:
            self._refusal = slow("GPM", seconds)
        self._left = seconds > SLOW_S or (self._refusal is not None and self._refusal.status in _FOR_GOOD)

    def _open(self) -> None:
        if self._samples:
            return
        if not nvml.nvmlGpmQueryDeviceSupport(self._found.card).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]

    def _sample(self, index: int) -> None:
        if self._found.mig:
            instance = nvml.nvmlDeviceGetGpuInstanceId(self._found.handle)
            nvml.nvmlGpmMigSampleGet(self._found.card, instance, self._samples[index])
        else:
            nvml.nvmlGpmSampleGet(self._found.handle, self._samples[index])

    def _finish(self) -> None:
        if self._ended - self._begun < _APART_S:
            self._refusal = Refusal("not_sampled", f"the window is shorter than {_APART_S:g} s")
            return
        self._sample(1)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        request.sample1, request.sample2 = self._samples
        for index, metric in enumerate(_METRICS.values()):
            request.metrics[index].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        for index, quantity in enumerate(_METRICS):
            self._values[quantity.name] = self._one(quantity, request.metrics[index])

    def _one(self, quantity: Quantity, metric: Any) -> Series:
        if metric.nvmlReturn != nvml.NVML_SUCCESS:
            return quantity.missing(self._explain(nvml.NVMLError(metric.nvmlReturn)))
        if not quantity.lowest <= metric.value <= quantity.highest:
            return quantity.missing(Refusal("error", "the value was impossible"), dropped=1)
        at = (round(self._ended - self._begun, 4),)
        values = (round(metric.value, 4),)
        return Series(quantity.unit, quantity.kind, "ok", "GPM", at_s=at, values=values)
