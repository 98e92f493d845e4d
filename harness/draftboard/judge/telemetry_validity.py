"""Reasons against a row that its telemetry gives: others on the GPU, a GPU held back, clocks, few samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from draftboard.judge.telemetry import MIN_SAMPLES
from draftboard.record.records import Arm
from draftboard.record.telemetry import DeviceWindow, Window

CLOCK_SHARE = 0.9
"""An SM clock below this share of the run's median has fallen."""
RARE = 0.05
"""Falls and slowdowns in fewer than this share of the samples are let pass."""

THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
"""The bits of NVML's clocks event reasons that mean that the GPU was held back."""

_WATCHED = ("gpu_busy_pct", "power_w", "sm_clock_mhz", "process_cpu_pct")


def reasons(arms: Sequence[Arm], arm: Arm) -> tuple[str, ...]:
    """Why the row of `arm`, one of a run's `arms`, should not be trusted; nothing without telemetry."""
    if arm.telemetry is None:
        return ()
    window = arm.telemetry.window
    few = (f"telemetry: {reason}" for device in window.devices for reason in _few(device, window))
    return (*few, *disturbances(arms, arm))


def disturbances(arms: Sequence[Arm], arm: Arm) -> tuple[str, ...]:
    """What kept `arm`'s devices from their full speed: others on them, a limit, fallen clocks."""
    if arm.telemetry is None:
        return ()
    found: list[str] = []
    for device in arm.telemetry.window.devices:
        found += [*_foreign(device), *_held_back(device), *_fallen(device, _clocks_of_run(arms, device))]
    return tuple(f"telemetry: {reason}" for reason in found)


def _few(device: DeviceWindow, window: Window) -> Iterator[str]:
    gauges = {name: device.series[name] for name in _WATCHED if name in device.series}
    few = {name: len(one.values) for name, one in gauges.items() if one.status == "ok"}
    few = {name: count for name, count in few.items() if count < MIN_SAMPLES}
    if few:
        name, count = min(few.items(), key=lambda item: item[1])
        yield f"only {count} samples of {name} in {window.seconds:.1f} s; {MIN_SAMPLES} are needed"


def _foreign(device: DeviceWindow) -> Iterator[str]:
    others = _values(device, "foreign_processes")
    if any(others):
        yield f"up to {max(others):.0f} other processes computed on {device.name}"


def _held_back(device: DeviceWindow) -> Iterator[str]:
    bits = [int(value) for value in _values(device, "clock_reasons")]
    for bit, cause in THROTTLES.items():
        share = sum(bool(one & bit) for one in bits) / len(bits) if bits else 0.0
        if share >= RARE:
            yield f"{device.name} was held back in {share:.0%} of the samples: {cause}"


def _fallen(device: DeviceWindow, all_clocks: Sequence[float]) -> Iterator[str]:
    own = _values(device, "sm_clock_mhz")
    if not own:
        return
    usual = statistics.median(all_clocks)
    share = sum(clock < CLOCK_SHARE * usual for clock in own) / len(own)
    if share >= RARE:
        yield (
            f"the SM clock of {device.name} was under {CLOCK_SHARE:.0%} of the run's median "
            f"({usual:.0f} MHz) in {share:.0%} of the samples"
        )


def _clocks_of_run(arms: Sequence[Arm], device: DeviceWindow) -> list[float]:
    """The SM clocks of one device in all windows of a run, wherever a window lists it."""
    windows = [arm.telemetry.window for arm in arms if arm.telemetry is not None]
    same = [one for window in windows for one in window.devices if _identity(one) == _identity(device)]
    return [clock for one in same for clock in _values(one, "sm_clock_mhz")]


def _identity(device: DeviceWindow) -> str:
    """The hash of its UUID; of those that have none, devices of one name are alike."""
    return device.uuid_sha256 or f"{device.kind} {device.name}"


def _values(device: DeviceWindow, name: str) -> tuple[float, ...]:
    series = device.series.get(name)
    return series.values if series is not None else ()
