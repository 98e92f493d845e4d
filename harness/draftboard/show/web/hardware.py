"""What the hardware did while an arm ran, for the table and for the arm's page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from draftboard.judge.telemetry import PEAKS, Figure, Summary, summarise
from draftboard.judge.telemetry_validity import THROTTLES
from draftboard.record.records import Arm, RunRecord
from draftboard.record.telemetry import DeviceWindow, Telemetry
from draftboard.show import words
from draftboard.show.collect import Entry
from draftboard.show.web.page import Fact, Section, said
from draftboard.show.web.svg import Plot, tag, text

SHORT = {"gpu_busy_pct": "busy", "sm_util_pct": "SM", "dram_bandwidth_pct": "DRAM"}
"""What the table says of a GPU, in per cent."""

DRAWN = ("gpu_busy_pct", "process_cpu_pct")
"""The quantity that is drawn: the first of these that any device was read for, GPUs asked first."""


GPU_BUSY = (
    "Share of the time in which any kernel ran on the GPU, however small a part of it the kernel used: it is "
    "not load. SM is the share of multiprocessors in use and DRAM that of the peak memory bandwidth, both "
    "means over the telemetry pass, of the first GPU."
)
ENERGY = (
    "Energy of all GPUs over the telemetry pass, prefills in it and the devices' rest included, per token of "
    "its replies: by the energy counter, else by power over time."
)
WEIGHTS = (
    "Bytes of the tensors that the method adds to the target's. Its cache and activations come on top: an "
    "arm's page has the measured peaks of GPU memory where they were recorded."
)


def of(entry: Entry, say: Callable[[Summary], Fact]) -> Fact:
    """What `say` says of an arm's telemetry; a dash with the reason where there is none."""
    if entry.hardware is None:
        return said("", entry.telemetry_missing or "")
    return say(entry.hardware)


def busy(summary: Summary) -> Fact:
    """How a run's first GPU was used; its value is the share of time in which any kernel ran."""
    gpu = next((device for device in summary.devices if device.kind != "cpu"), None)
    if gpu is None:
        return said("", "no GPU was sampled")
    found = {name: gpu.figures.get(key) for key, name in SHORT.items()}
    shown = ", ".join(f"{name} {_number(figure, ' %')}" for name, figure in found.items())
    reasons = (f"{name}: {one.missing}" for name, one in found.items() if one and one.missing)
    return replace(said(shown, "; ".join(reasons)), value=_value(found["busy"]))


def energy(summary: Summary) -> Fact:
    """Energy per token, over all GPUs."""
    found = summary.j_per_token_gross
    return replace(said(_number(found, " J"), found.missing or ""), value=_value(found))


def _value(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else repr(figure.value)


def section(run: RunRecord, baseline: Arm, arm: Arm) -> Section:
    """Every figure of the arm beside the baseline's, and one quantity over time."""
    if arm.telemetry is None:
        return Section(None, (), (), arm.telemetry_missing or "not sampled")
    own = summarise(arm.telemetry, run.idle)
    plain = baseline.telemetry
    base = dict(_figures(plain, summarise(plain, run.idle))) if plain else {}
    lines = tuple(_lines(dict(_figures(arm.telemetry, own)), base))
    parts = [("plain decoding", baseline.telemetry), (arm.card.label, arm.telemetry)]
    shown = [(name, one) for name, one in parts if one is not None]
    notes = [f"{own.seconds:.1f} s of sampling over {own.replies} replies.", *own.warnings]
    notes += [f"{device.name}: {note}" for device in own.devices for note in device.notes]
    notes += [f"{name} {version}." for name, version in arm.telemetry.software.items()]
    notes += [note for device in arm.telemetry.window.devices for note in _clock_reasons(device)]
    return Section(bands(shown if arm.id != baseline.id else shown[-1:]), lines, tuple(notes))


def _clock_reasons(device: DeviceWindow) -> Iterator[str]:
    """What held a GPU's clocks back, or that nothing did; nothing where that was not recorded."""
    found = device.series.get("clock_reasons")
    if found is None or found.status != "ok" or not found.values:
        return
    count = len(found.values)
    shares = {why: sum(bool(int(v) & bit) for v in found.values) / count for bit, why in THROTTLES.items()}
    shown = ", ".join(f"{why} in {share:.0%}" for why, share in shares.items() if share)
    yield f"{device.name}: of {count} samples its clocks were held back by {shown or 'nothing'}."


def _lines(own: dict[str, Figure], base: dict[str, Figure]) -> Iterator[tuple[str, ...]]:
    for name, figure in own.items():
        yield name, _said(base.get(name)), _said(figure), str(figure.samples or words.DASH)


def _figures(telemetry: Telemetry, summary: Summary) -> Iterator[tuple[str, Figure]]:
    for device in summary.devices:
        for name, figure in device.figures.items():
            yield f"{device.name}: {name}{' (peak)' if name in PEAKS else ''}", figure
    if any(device.kind != "cpu" for device in summary.devices):
        yield "memory allocated by torch (peak)", _recorded(telemetry.torch_allocated_peak_bytes)
        yield "memory reserved by torch (peak)", _recorded(telemetry.torch_reserved_peak_bytes)
    yield "power", summary.power_w
    yield "power at rest", summary.idle_power_w
    yield "energy by the counter", summary.energy_counter_j
    yield "energy by power over time", summary.energy_integrated_j
    yield "energy per token", summary.j_per_token_gross
    yield "energy per token, less that at rest", summary.j_per_token_net


def _recorded(size: int | None) -> Figure:
    return Figure(size, "bytes", missing="not recorded" if size is None else None)


def _said(figure: Figure | None) -> str:
    if figure is None:
        return words.DASH
    if figure.value is None:
        return f"{words.DASH} ({figure.missing})"
    if figure.unit.startswith("bytes"):
        return f"{figure.value / 1e6:,.1f} MB{figure.unit.removeprefix('bytes')}"
    return f"{figure.value:,.4g} {figure.unit}"


def _number(figure: Figure | None, unit: str) -> str:
    return words.DASH if figure is None or figure.value is None else f"{figure.value:.3g}{unit}"


def bands(parts: Sequence[tuple[str, Telemetry]]) -> Markup | None:
    """The last arm's quantity over time, the windows of the arms side by side as bands; None where none was
    read."""
    found = [(name, one) for name, part in parts if (one := _drawn(part)) is not None]
    if not found:
        return None
    read = [(name, one) for name, one in found if one[0] == found[-1][1][0]]
    quantity, unit = read[-1][1][0], read[-1][1][1]
    top = max(value for _, (_, _, points, _) in read for _, value in points)
    plot = Plot((0.0, sum(seconds for _, (_, _, _, seconds) in read)), (0.0, max(top, 1.0) * 1.15))
    marks, start = [], 0.0
    for index, (name, (_, _, points, seconds)) in enumerate(read):
        marks += _band(plot, name, start, seconds, index)
        marks.append(plot.line([(start + at, value) for at, value in points], "line"))
        start += seconds
    return plot.draw(*marks, label=f"{quantity} over time, arm by arm", x_title="seconds", y_title=unit)


def _band(plot: Plot, name: str, start: float, seconds: float, index: int) -> list[Markup]:
    left, right = plot.at_x(start), plot.at_x(start + seconds)
    size = {"width": right - left, "height": plot.at_y(plot.y[0]) - plot.top}
    shade = tag("rect", class_=f"arm{index % 2}", x=left, y=plot.top, **size)
    return [shade, text(name, left + 6, plot.top + 12, "start")]


def _drawn(one: Telemetry) -> tuple[str, str, list[tuple[float, float]], float] | None:
    """(quantity, unit, points, seconds)."""
    devices = sorted(one.window.devices, key=lambda device: device.kind == "cpu")
    for name in DRAWN:
        for device in devices:
            series = device.series.get(name)
            if series is not None and series.status == "ok" and len(series.values) > 1:
                points = list(zip(series.at_s, series.values, strict=True))
                return f"{device.name}: {name}", series.unit, points, one.window.seconds
    return None
