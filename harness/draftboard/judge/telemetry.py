"""What an arm's telemetry amounts to: means over the window, energy, energy per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from draftboard.record.telemetry import DeviceWindow, Series, Telemetry, Window

MIN_SAMPLES = 10
"""A gauge read less often within a window tells nothing: drivers refresh theirs once a second or so."""
ENERGY_GAP = 0.1
"""The two ways of reckoning energy may differ by this share before it is said."""

PEAKS = ("temperature_c", "memory_used_bytes", "process_rss_bytes")
"""Quantities of which the largest reading is told, not the mean."""
_NO_MEAN = ("clock_reasons",)
_LOAD = ("gpu_busy_pct", "sm_util_pct", "power_w")
_NO_TIME = "the window has no length"
_NO_TOKENS = "no token was made within the window"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its unit; without a value `missing` says why. `samples` is what it was made of."""

    value: float | None
    unit: str
    samples: int = 0
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device's figures by name: means over the window, peaks for those in `PEAKS`."""

    name: str
    kind: str
    figures: dict[str, Figure]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """An arm's telemetry in figures. Power and energy are sums over all its GPUs."""

    seconds: float
    replies: int
    tokens: int
    devices: tuple[DeviceSummary, ...]
    power_w: Figure
    idle_power_w: Figure
    energy_counter_j: Figure
    energy_integrated_j: Figure
    j_per_token_gross: Figure
    """Energy of the whole window, prefills in it, per token of its replies: by the counter, else by power."""
    j_per_token_net: Figure
    """The same less what the devices at rest would have used meanwhile."""
    warnings: tuple[str, ...]


def summarise(telemetry: Telemetry, idle: Window | None) -> Summary:
    """Every figure of an arm; `idle` is its run's window at rest."""
    window, tokens = telemetry.window, telemetry.tokens
    energy, rest = _over_gpus(window, energy_j), _rest(idle)
    net = _sum([energy, _scaled(rest, -window.seconds, "J")])
    return Summary(
        seconds=window.seconds,
        replies=telemetry.replies,
        tokens=tokens,
        devices=tuple(_device(one, window.seconds) for one in window.devices),
        power_w=_rate(energy, window.seconds, "W", _NO_TIME),
        idle_power_w=rest,
        energy_counter_j=_over_gpus(window, counted_j),
        energy_integrated_j=_over_gpus(window, integrated_j),
        j_per_token_gross=_rate(energy, tokens, "J/token", _NO_TOKENS),
        j_per_token_net=_rate(net, tokens, "J/token", _NO_TOKENS),
        warnings=tuple(_warnings(window)),
    )


def mean(series: Series, seconds: float) -> Figure:
    """Mean over a window by the trapezoid rule; the outermost readings hold up to the window's edges."""
    if _flaw(series):
        return _none(series)
    if series.kind == "mean":
        return Figure(series.values[-1], series.unit, 1)
    if len(series.values) < MIN_SAMPLES:
        missing = f"only {len(series.values)} samples; {MIN_SAMPLES} are needed"
        return Figure(None, series.unit, len(series.values), missing)
    area = Figure(_integral(series, seconds), series.unit, len(series.values))
    return _rate(area, seconds, series.unit, _NO_TIME)


def energy_j(device: DeviceWindow, seconds: float) -> Figure:
    """Joules of a device within a window: by its counter, else by its power."""
    counter = counted_j(device, seconds)
    return counter if counter.value is not None else integrated_j(device, seconds)


def counted_j(device: DeviceWindow, seconds: float) -> Figure:
    """Joules from the counter's readings at the window's edges."""
    series = _series(device, "energy_j", "J")
    if _flaw(series):
        return _none(series)
    joules = series.values[-1] - series.values[0]
    if len(series.values) != 2:
        return Figure(None, "J", 1, "the counter was not read at both edges")
    if joules <= 0:
        happened = "was reset within the window" if joules else "did not move"
        return Figure(None, "J", 2, f"the counter {happened}")
    return Figure(joules, "J", 2)


def integrated_j(device: DeviceWindow, seconds: float) -> Figure:
    """Joules from the integral of power."""
    return _scaled(mean(_series(device, "power_w", "W"), seconds), seconds, "J")


def _integral(series: Series, seconds: float) -> float:
    at = (0.0, *series.at_s, seconds)
    values = (series.values[0], *series.values, series.values[-1])
    steps = zip(pairwise(at), pairwise(values), strict=True)
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, t1), (v0, v1) in steps)


def _device(device: DeviceWindow, seconds: float) -> DeviceSummary:
    shown = {n: one for n, one in device.series.items() if one.kind != "counter" and n not in _NO_MEAN}
    figures = {n: _peak(one) if n in PEAKS else mean(one, seconds) for n, one in shown.items()}
    return DeviceSummary(device.name, device.kind, figures, device.notes)


def _peak(series: Series) -> Figure:
    if _flaw(series):
        return _none(series)
    return Figure(max(series.values), series.unit, len(series.values))


def _series(device: DeviceWindow, name: str, unit: str) -> Series:
    """A quantity of a device; one that its record lacks was not sampled."""
    lacking = Series(unit, "gauge", "not_sampled", detail=f"the record holds no {name}")
    return device.series.get(name, lacking)


def _flaw(series: Series) -> str | None:
    """Why nothing can be reckoned from a series; None where it can."""
    if series.status != "ok":
        words = series.status.replace("_", " ")
        return f"{words}: {series.detail}" if series.detail else words
    if not series.values or len(series.values) != len(series.at_s):
        return f"the record holds {len(series.values)} values at {len(series.at_s)} moments"
    return None


def _none(series: Series) -> Figure:
    return Figure(None, series.unit, 0, _flaw(series))


def _over_gpus(window: Window, read: Callable[[DeviceWindow, float], Figure]) -> Figure:
    gpus = [device for device in window.devices if device.kind != "cpu"]
    if not gpus:
        return Figure(None, "J", 0, "no GPU, and nothing here measures the processor's power")
    return _sum([read(gpu, window.seconds) for gpu in gpus])


def _rest(idle: Window | None) -> Figure:
    if idle is None:
        return Figure(None, "W", 0, "the devices were not sampled at rest")
    return _rate(_over_gpus(idle, energy_j), idle.seconds, "W", _NO_TIME)


def _sum(figures: list[Figure]) -> Figure:
    """The sum, unknown when one of them is."""
    lacking = next((figure for figure in figures if figure.value is None), None)
    if lacking is not None:
        return lacking
    total = sum(figure.value or 0.0 for figure in figures)
    return Figure(total, figures[0].unit, min(figure.samples for figure in figures))


def _scaled(figure: Figure, factor: float, unit: str) -> Figure:
    value = None if figure.value is None else figure.value * factor
    return Figure(value, unit, figure.samples, figure.missing)


def _rate(figure: Figure, divisor: float, unit: str, otherwise: str) -> Figure:
    """A figure per something; unknown, because of `otherwise`, where there is none of that."""
    if divisor > 0:
        return _scaled(figure, 1 / divisor, unit)
    return Figure(None, unit, figure.samples, figure.missing or otherwise)


def _warnings(window: Window) -> Iterator[str]:
    for device in window.devices:
        if device.kind != "cpu":
            found = (*_two_energies(device, window.seconds), *_zeros(device), *_strangers(device))
            yield from (f"{device.name}: {warning}" for warning in found)


def _two_energies(device: DeviceWindow, seconds: float) -> Iterator[str]:
    counter, power = counted_j(device, seconds).value, integrated_j(device, seconds).value
    if counter is not None and power is not None and abs(power / counter - 1) > ENERGY_GAP:
        yield f"the energy counter says {counter:.0f} J and power integrates to {power:.0f} J"


def _zeros(device: DeviceWindow) -> Iterator[str]:
    for name in _LOAD:
        values = _series(device, name, "").values
        if values and not any(values):
            yield f"{name} is 0 in every sample though kernels ran"


def _strangers(device: DeviceWindow) -> Iterator[str]:
    if _flaw(_series(device, "foreign_processes", "processes")):
        yield "whether others computed on it is not known"
