"""The sampling process as it runs: with and without GPUs, hanging, dying, and ending with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftboard.measure.telemetry import quantities
from draftboard.measure.telemetry.request import GpuRef, Request
from draftboard.measure.telemetry.sampler import NullSampler, Sampler, SamplerError, open_sampler
from draftboard.record.telemetry import Window
from nvml_library import MEMORY, UUIDS, library

QUIET = Request(os.getpid())


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
    monkeypatch.setenv("FAKE_PID", "parent")
    monkeypatch.setenv("FAKE_PROCESSES", "2")  # ours alone says nothing where the tests run in a container
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


HANGING = {
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlGpmSampleGet": {quantity.name for quantity in quantities.WINDOWED},
}
"""Calls and what goes missing with them."""


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("call", HANGING)
def test_nvml_a_call_that_hangs_is_left_and_the_others_stay(nvml: pytest.MonkeyPatch, call: str) -> None:
    nvml.setenv("FAKE_HANG", call)
    with Sampler(on_gpus(1)) as sampler:
        window = window_of(sampler)
    series = window.devices[1].series
    assert {name for name, one in series.items() if one.status != "ok"} == HANGING[call]
    for name in HANGING[call]:
        assert series[name].status == "error" and "a call of 2" in (series[name].detail or "")
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


def test_telemetry_process_that_dies_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "x" * 10_000 + "\\nterminate called: no room\\n\\n"
    dying = f"import os, sys\nsys.stderr.write('{words}')\nsys.stderr.flush()\nos.abort()\n"
    (tmp_path / "psutil.py").write_text(dying)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    refused = open_sampler(QUIET)
    assert isinstance(refused, NullSampler)
    assert refused.reason == "the sampling process ended with code -6: terminate called: no room"


def test_telemetry_process_that_not_even_a_kill_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(QUIET)
    process = sampler._process
    done: list[object] = []

    class Stuck:
        returncode = None

        def kill(self) -> None:
            done.append("kill")

        def wait(self, timeout: float | None = None) -> None:
            assert timeout is not None, "this would wait for ever"
            done.append("wait")
            raise subprocess.TimeoutExpired("stuck", timeout)

    monkeypatch.setattr(sampler, "_process", Stuck())
    sampler.close()
    assert done == ["wait", "kill", "wait"]
    process.wait(timeout=10)


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


@pytest.mark.parametrize(("seconds", "period"), [(15.0, 0.5), (6.0, 0.2), (1.0, 0.1), (0.3, 0.1)])
def test_telemetry_polls_a_processor_thirty_times_a_window_and_a_gpu_ten_times_a_second(
    seconds: float, period: float
) -> None:
    assert Request.of_window(seconds, 1, ()).period_s == pytest.approx(period)
    assert Request.of_window(seconds, 1, (GpuRef("a", None, None, 1),)).period_s == 0.1
