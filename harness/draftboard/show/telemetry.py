"""One arm's telemetry in the terminal: energy, and every quantity of every device with why it is missing."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from draftboard.judge.telemetry import PEAKS, DeviceSummary, Figure, Summary, summarise
from draftboard.record.records import Arm, RunRecord
from draftboard.record.telemetry import Telemetry
from draftboard.show import layout, words

_ENERGY = {
    "power": "power_w",
    "power at rest": "idle_power_w",
    "energy by counter": "energy_counter_j",
    "energy by power": "energy_integrated_j",
    "energy a token": "j_per_token_gross",
    "less what rest would take": "j_per_token_net",
}


def telemetry(run: RunRecord, arm: Arm) -> list[RenderableType]:
    """What the hardware said while the arm ran back to back, or why it said nothing."""
    if arm.telemetry is None:
        return [Text(words.visible(f"telemetry: {arm.telemetry_missing}"), "dim")]
    found = summarise(arm.telemetry, run.idle)
    head = (
        f"telemetry: {found.seconds:.1f} s back to back after all timing, {found.replies} replies, "
        f"{found.tokens} tokens"
    )
    parts: list[RenderableType] = [Text(head), *_memory(arm.telemetry)]
    if any(device.kind != "cpu" for device in found.devices):
        parts.append(_energy(found))
    parts += [_device(device) for device in found.devices]
    return [*parts, *(Text(words.visible(f"warning: {text}"), "yellow") for text in found.warnings)]


def _memory(found: Telemetry) -> Iterator[Text]:
    allocated, reserved = found.torch_allocated_peak_bytes, found.torch_reserved_peak_bytes
    if allocated is not None and reserved is not None:
        yield Text(
            f"torch's memory peaks: {allocated / 1e9:.2f} GB allocated, {reserved / 1e9:.2f} GB reserved"
        )


def _energy(found: Summary) -> RenderableType:
    return _table("all GPUs", ((name, getattr(found, field)) for name, field in _ENERGY.items()))


def _device(device: DeviceSummary) -> RenderableType:
    notes = "".join(f"; {note}" for note in device.notes)
    return _table(f"{device.name} ({device.kind}{notes})", iter(device.figures.items()))


def _table(title: str, figures: Iterator[tuple[str, Figure]]) -> RenderableType:
    table = layout.new_table(("figure", "value", "unit", "samples", "missing"), "lrlrl", title)
    for name, one in figures:
        value = words.DASH if one.value is None else f"{one.value:.5g}"
        why = Text(words.visible(one.missing or words.DASH), "dim")
        unit = f"{one.unit} (peak)" if name in PEAKS else one.unit
        table.add_row(name, value, words.visible(unit), str(one.samples or ""), why)
    return table
