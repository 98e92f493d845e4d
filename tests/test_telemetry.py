"""Figures and reasons from telemetry, and the sampling process as it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftboard.judge.telemetry import counted_j, energy_j, integrated_j, mean, summarise
from draftboard.judge.telemetry_validity import reasons
from draftboard.measure.telemetry.request import GpuRef, Request
from draftboard.measure.telemetry.sampler import NullSampler, Sampler, SamplerError, open_sampler
from draftboard.record.codec import from_json, to_json
from draftboard.record.telemetry import DeviceWindow, Series, Telemetry, Window
from nvml_library import MEMORY, UUIDS, drive, library, scenario
from record_factory import make_arm, make_baseline, plain_trace

QUIET = Request(os.getpid())


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


def test_telemetry_idle_and_fixed_clocks_and_rare_falls_are_no_reason() -> None:
    assert reason(gpu_window(clock_reasons=gauge(*[float(0x01 | 0x02 | 0x10)] * 20))) == ()
    assert reason(gpu_window(sm_clock_mhz=gauge(*[1980.0] * 39, 1500.0))) == ()
    assert reason(gpu_window(sm_clock_mhz=missing("MHz"), foreign_processes=missing(""))) == ()


def test_telemetry_survives_its_file() -> None:
    arm = make_arm([plain_trace()], telemetry=telemetry(), telemetry_missing=None)
    assert from_json(type(arm), to_json(arm)) == arm
    old = {key: item for key, item in to_json(make_arm([plain_trace()])).items() if "telemetry" not in key}
    assert from_json(type(arm), old).telemetry_missing == "not sampled"


def window_of(sampler: Sampler, seconds: float = 0.5) -> Window:
    sampler.begin()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))
    return sampler.end()


def test_telemetry_of_the_processor_needs_no_gpu_and_watches_the_process() -> None:
    with Sampler(QUIET) as sampler:
        first, second = window_of(sampler), window_of(sampler)
    for window in (first, second):
        assert [device.kind for device in window.devices] == ["cpu"]
        series = window.devices[0].series
        assert series["process_rss_bytes"].values[0] > 1e6
        assert max(series["process_cpu_pct"].values) > 0
        assert all(0 <= at <= window.seconds for one in series.values() for at in one.at_s)
        assert window.sampler_cpu_s is not None and window.sampler_cpu_s < window.seconds
    assert sampler._process.returncode == 0


def on_gpus(*indices: int) -> Request:
    gpus = (GpuRef("Fake GPU", UUIDS[index], None, MEMORY) for index in indices)
    return Request(os.getpid(), tuple(gpus), period_s=0.02)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The stand-in library for processes that start from here on."""
    monkeypatch.setenv("LD_LIBRARY_PATH", library())
    return monkeypatch


@pytest.mark.needs("gcc")
def test_nvml_through_the_sampling_process(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with Sampler(on_gpus(2, 3)) as sampler:
        window = window_of(sampler)
    assert sampler.software == {"driver": "580.65.06", "nvml": "13.580.65.06", "cuda_of_driver": "13.1"}
    assert [device.kind for device in window.devices] == ["cpu", "gpu", "gpu"]
    busy = [set(device.series["gpu_busy_pct"].values) for device in window.devices[1:]]
    assert busy == [{30.0}, {40.0}]
    assert {one.status for device in window.devices for one in device.series.values()} == {"ok"}


@pytest.mark.needs("gcc")
def test_nvml_a_call_that_hangs_is_left_and_the_others_stay(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("FAKE_HANG", "nvmlDeviceGetTemperature")
    with Sampler(on_gpus(1)) as sampler:
        window = window_of(sampler)
    series = window.devices[1].series
    assert series["temperature_c"].status == "error" and "a call of 2" in (
        series["temperature_c"].detail or ""
    )
    assert {name for name, one in series.items() if one.status != "ok"} == {"temperature_c"}
    assert window.seconds < 2


@pytest.mark.needs("gcc")
def test_nvml_that_does_not_start_leaves_the_processor(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("FAKE_REFUSE", "nvmlInitWithFlags=9")
    with Sampler(on_gpus(0)) as sampler:
        cpu, gpu = window_of(sampler).devices
    assert {one.status for one in gpu.series.values()} == {"error"}
    assert "Driver Not Loaded" in (gpu.series["power_w"].detail or "")
    assert cpu.series["process_cpu_pct"].status == "ok"


@pytest.mark.needs("gcc")
def test_nvml_that_never_answers_is_given_up(nvml: pytest.MonkeyPatch) -> None:
    nvml.setenv("FAKE_HANG", "nvmlInitWithFlags")
    refused = open_sampler(on_gpus(0), start_timeout_s=0.2)
    assert isinstance(refused, NullSampler) and "did not answer within 0.2 s" in refused.reason
    with pytest.raises(SamplerError, match="did not answer"):
        refused.begin()


def test_telemetry_process_that_dies_is_an_error_with_its_code() -> None:
    with Sampler(QUIET) as sampler:
        sampler.begin()
        os.kill(sampler._process.pid, signal.SIGKILL)
        with pytest.raises(SamplerError, match="ended with code -9"):
            sampler.end()


def test_telemetry_process_that_breaks_says_why() -> None:
    with pytest.raises(SamplerError, match="NoSuchProcess"):
        Sampler(Request(2**22 + 1))


def test_telemetry_process_ends_with_its_parent() -> None:
    script = (
        "import os\n"
        "from draftboard.measure.telemetry.sampler import Sampler, Request\n"
        "sampler = Sampler(Request(os.getpid())); sampler.begin()\n"
        "print(sampler._process.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 10
    while _is_alive(int(done.stdout)):
        assert time.monotonic() < deadline, "the sampling process outlived its parent"
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def test_telemetry_process_imports_no_torch() -> None:
    script = (
        "import sys, draftboard.measure.telemetry.process, draftboard.measure.telemetry.nvml_ways\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_telemetry_summary_uses_the_counter_before_power() -> None:
    apart = gpu_window(energy_j=counter(0, 1500))
    found = summarise(telemetry(apart), None)
    assert found.j_per_token_gross.value == 1.0 and found.energy_integrated_j.value == pytest.approx(3000)
