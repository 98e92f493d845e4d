"""Figures from telemetry, the reasons it gives against a row, and how they are shown."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from draftboard.judge.telemetry import counted_j, energy_j, integrated_j, mean, summarise
from draftboard.judge.telemetry_validity import reasons
from draftboard.record.codec import from_json, to_json
from draftboard.record.telemetry import DeviceWindow, Series, Telemetry, Window
from draftboard.show.trace import arm_record
from nvml_library import drive, scenario
from record_factory import make_arm, make_baseline, make_run, plain_trace


def gauge(*values: float, seconds: float = 10.0, unit: str = "W") -> Series:
    """Readings spread evenly over a window, its two edges left out."""
    step = seconds / (len(values) + 1)
    at = tuple(step * (i + 1) for i in range(len(values)))
    return Series(unit, "gauge", "ok", "polled", at_s=at, values=values)


def counter(first: float, last: float) -> Series:
    return Series("J", "counter", "ok", "counter", at_s=(0.0, 10.0), values=(first, last))


def missing(unit: str = "W") -> Series:
    return Series(unit, "gauge", "unsupported", detail="Not Supported")


def gpu_window(name: str = "GPU", kind: Any = "gpu", **changes: Series) -> DeviceWindow:
    steady = {
        "gpu_busy_pct": gauge(*[90.0] * 20, unit="%"),
        "sm_util_pct": Series("%", "mean", "ok", "GPM", at_s=(10.0,), values=(55.0,)),
        "power_w": gauge(*[300.0] * 20),
        "energy_j": counter(1000.0, 4000.0),
        "sm_clock_mhz": gauge(*[1980.0] * 20, unit="MHz"),
        "clock_reasons": gauge(*[0.0] * 20, unit="bits"),
        "foreign_processes": gauge(*[0.0] * 20, unit="processes"),
        "temperature_c": gauge(60.0, 64.0, 62.0, unit="°C"),
    }
    return DeviceWindow(name, kind, None, {**steady, **changes})


def telemetry(*devices: DeviceWindow, tokens: int = 1500, seconds: float = 10.0) -> Telemetry:
    return Telemetry(Window(seconds, 0.1, devices or (gpu_window(),)), 10, tokens, {})


def resting(watts: float) -> Window:
    return Window(5.0, 0.1, (gpu_window(energy_j=counter(0, 5 * watts), power_w=gauge(*[watts] * 20)),))


def test_telemetry_300_watts_for_10_seconds_are_3000_joules() -> None:
    device = gpu_window(energy_j=missing("J"))
    assert mean(device.series["power_w"], 10.0).value == pytest.approx(300)
    assert integrated_j(device, 10.0).value == energy_j(device, 10.0).value == pytest.approx(3000)
    found = summarise(telemetry(device), resting(60.0))
    assert found.j_per_token_gross.value == pytest.approx(2.0)
    assert found.j_per_token_net.value == pytest.approx((3000 - 600) / 1500)
    assert (found.power_w.value, found.idle_power_w.value) == (pytest.approx(300), pytest.approx(60))


@pytest.mark.needs("gcc")
def test_telemetry_300000_milliwatts_read_by_nvml_are_3000_joules() -> None:
    end = {"at": 10.0, "do": "end", "env": {"FAKE_ENERGY": "3000001"}}
    polls = [{"at": float(i), "do": "poll"} for i in range(1, 10)]
    begin = {"at": 0.0, "do": "begin", "env": {"FAKE_ENERGY": "1"}}
    ((window,),) = drive(scenario(steps=[begin, *polls, end], FAKE_POWER="300000"))
    assert integrated_j(window.devices[0], window.seconds).value == pytest.approx(3000)
    assert counted_j(window.devices[0], window.seconds).value == pytest.approx(3000)


def test_telemetry_power_is_integrated_by_trapezoids_up_to_the_edges() -> None:
    ramp = Series("W", "gauge", "ok", at_s=tuple(range(1, 11)), values=tuple(10.0 * i for i in range(1, 11)))
    inside = sum((a + b) / 2 for a, b in zip(ramp.values, ramp.values[1:], strict=False))
    assert mean(ramp, 12.0).value == pytest.approx((10 * 1 + inside + 100 * 2) / 12)


@pytest.mark.parametrize(
    "energy, why", [((4000, 1000), "reset"), ((1000, 1000), "did not move"), (None, "Not Supported")]
)
def test_telemetry_a_counter_that_tells_nothing_gives_way_to_power(energy: Any, why: str) -> None:
    device = gpu_window(energy_j=missing("J") if energy is None else counter(*energy))
    figure = counted_j(device, 10.0)
    assert figure.value is None and why in (figure.missing or "")
    assert energy_j(device, 10.0).value == pytest.approx(3000)
    dark = replace(device, series={**device.series, "power_w": missing()})
    found = summarise(telemetry(dark), None)
    assert (found.j_per_token_gross.value, found.j_per_token_net.value) == (None, None)
    assert "Not Supported" in (found.j_per_token_gross.missing or "")


def test_telemetry_several_gpus_are_listed_and_summed_and_one_unknown_makes_the_sum_unknown() -> None:
    two = telemetry(gpu_window("A"), gpu_window("B", energy_j=counter(0, 1000)))
    found = summarise(two, None)
    assert [device.name for device in found.devices] == ["A", "B"]
    assert found.energy_counter_j.value == 4000 and found.power_w.value == pytest.approx(400)
    dark = gpu_window("B", energy_j=missing("J"), power_w=missing())
    assert summarise(telemetry(gpu_window("A"), dark), None).power_w.value is None


def test_telemetry_net_energy_needs_a_window_at_rest() -> None:
    found = summarise(telemetry(), None)
    assert found.j_per_token_gross.value is not None and found.j_per_token_net.value is None
    assert "at rest" in (found.j_per_token_net.missing or "")


def test_telemetry_gauges_need_samples_and_peaks_are_peaks() -> None:
    few = gpu_window(gpu_busy_pct=gauge(90.0, 91.0, unit="%"))
    figures = summarise(telemetry(few), None).devices[0].figures
    assert figures["gpu_busy_pct"].value is None and "only 2 samples" in (
        figures["gpu_busy_pct"].missing or ""
    )
    assert figures["temperature_c"].value == 64.0
    assert figures["sm_util_pct"].value == 55.0


def test_telemetry_warns_of_two_energies_of_zeros_and_of_unknown_company() -> None:
    assert summarise(telemetry(), None).warnings == ()
    apart = gpu_window(energy_j=counter(0, 1870), power_w=gauge(*[327.0] * 20))
    assert "1870 J and power integrates to 3270 J" in summarise(telemetry(apart), None).warnings[0]
    dead = gpu_window(gpu_busy_pct=gauge(*[0.0] * 20), foreign_processes=missing("processes"))
    zeros, company = summarise(telemetry(dead), None).warnings
    assert "gpu_busy_pct is 0 in every sample" in zeros and "not known" in company


ODD = {
    "j_per_token_gross": (telemetry(tokens=0), "no token was made within the window"),
    "power_w": (telemetry(seconds=0.0), "the window has no length"),
    "energy_integrated_j": (telemetry(DeviceWindow("GPU", "gpu", None, {})), "the record holds no power_w"),
    "energy_counter_j": (
        telemetry(gpu_window(energy_j=Series("J", "counter", "ok"))),
        "the record holds 0 values at 0 moments",
    ),
}
"""Records that no sampler of ours writes: a figure that is unknown then, and why."""


@pytest.mark.parametrize("name", ODD)
def test_telemetry_of_odd_records_is_unknown_with_a_reason(name: str) -> None:
    odd, why = ODD[name]
    figure = getattr(summarise(odd, resting(60.0)), name)
    assert figure.value is None and why in figure.missing
    assert reasons(arms(odd), arms(odd)[1]) == ()


def test_telemetry_at_rest_for_no_time_is_unknown() -> None:
    rest = summarise(telemetry(), replace(resting(60.0), seconds=0.0))
    assert (rest.idle_power_w.value, rest.j_per_token_net.value) == (None, None)
    assert "no length" in (rest.idle_power_w.missing or "")
    assert rest.j_per_token_gross.value is not None


def test_telemetry_a_mean_over_no_time_and_unpaired_moments_are_unknown() -> None:
    assert mean(gauge(*[1.0] * 20), 0.0).missing == "the window has no length"
    torn = replace(gauge(*[1.0] * 20), at_s=(1.0,))
    assert mean(torn, 10.0).missing == "the record holds 20 values at 1 moments"


def arms(*windows: Telemetry | None) -> list[Any]:
    made = [make_arm([plain_trace()], id=f"arm{i}", telemetry=one) for i, one in enumerate(windows)]
    return [make_baseline([plain_trace()]), *made]


def reason(device: DeviceWindow, seconds: float = 10.0) -> tuple[str, ...]:
    run = arms(telemetry(), telemetry(device, seconds=seconds), telemetry())
    assert reasons(run, run[0]) == reasons(run, run[1]) == ()
    return reasons(run, run[2])


def test_telemetry_without_a_flaw_or_without_a_window_gives_no_reason() -> None:
    assert reason(gpu_window()) == ()


def test_telemetry_foreign_processes_throttling_clocks_and_few_samples_are_reasons() -> None:
    (foreign,) = reason(gpu_window(foreign_processes=gauge(0.0, 2.0)))
    assert foreign == "telemetry: up to 2 other processes computed on GPU"
    (held,) = reason(gpu_window(clock_reasons=gauge(*[0.0] * 15, *[float(0x04 | 0x01)] * 5)))
    assert held == "telemetry: GPU was held back in 25% of the samples: power cap"
    (fallen,) = reason(gpu_window(sm_clock_mhz=gauge(*[1980.0] * 15, *[1700.0] * 5)))
    assert "under 90% of the run's median (1980 MHz) in 25% of the samples" in fallen
    (few,) = reason(gpu_window(power_w=gauge(300.0)))
    assert few == "telemetry: only 1 samples of power_w in 10.0 s; 10 are needed"


def test_telemetry_clocks_are_those_of_one_device_wherever_a_window_lists_it() -> None:
    slow = gpu_window("slow", sm_clock_mhz=gauge(*[1000.0] * 20, unit="MHz"))
    fast = gpu_window("fast")
    run = arms(telemetry(fast, slow), telemetry(slow, fast), telemetry(slow))
    assert [reasons(run, arm) for arm in run] == [()] * 4
    alike = [replace(one, name="GPU", uuid_sha256=str(i)) for i, one in enumerate((fast, slow))]
    run = arms(telemetry(*alike), telemetry(*reversed(alike)))
    assert [reasons(run, arm) for arm in run] == [()] * 3


def test_telemetry_idle_and_fixed_clocks_and_rare_falls_are_no_reason() -> None:
    assert reason(gpu_window(clock_reasons=gauge(*[float(0x01 | 0x02 | 0x10)] * 20))) == ()
    assert reason(gpu_window(sm_clock_mhz=gauge(*[1980.0] * 39, 1500.0))) == ()
    assert reason(gpu_window(sm_clock_mhz=missing("MHz"), foreign_processes=missing(""))) == ()


def test_telemetry_survives_its_file() -> None:
    arm = make_arm([plain_trace()], telemetry=telemetry(), telemetry_missing=None)
    assert from_json(type(arm), to_json(arm)) == arm
    old = {key: item for key, item in to_json(make_arm([plain_trace()])).items() if "telemetry" not in key}
    assert from_json(type(arm), old).telemetry_missing == "not sampled"


def test_telemetry_summary_uses_the_counter_before_power() -> None:
    apart = gpu_window(energy_j=counter(0, 1500))
    found = summarise(telemetry(apart), None)
    assert found.j_per_token_gross.value == 1.0 and found.energy_integrated_j.value == pytest.approx(3000)


def shown(arm: Any, **changes: Any) -> str:
    base = make_baseline([plain_trace()])
    console = Console(file=io.StringIO(), width=200)
    console.print(arm_record(make_run([base, arm], **changes), [base, arm], arm, None))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_telemetry_is_shown_with_its_reasons_and_gaps() -> None:
    text = shown(make_arm([plain_trace()], telemetry=telemetry()), idle=resting(60.0))
    rows = {line.strip().split("  ")[0]: line.split()[-4:-1] for line in text.splitlines()}
    assert rows["energy a token"] == ["2", "J/token", "2"]
    assert rows["less what rest would take"] == ["1.6", "J/token", "2"]
    dark = make_arm(
        [plain_trace()], telemetry=telemetry(gpu_window(power_w=missing(), energy_j=missing("J")))
    )
    assert "energy a token" in shown(dark) and "unsupported: Not Supported" in shown(dark)
    assert "telemetry: not sampled" in shown(make_arm([plain_trace()]))
