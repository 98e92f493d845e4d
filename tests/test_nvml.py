"""NVML read through its real bindings, with a compiled stand-in where the driver's library would be."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from draftboard.measure.telemetry import quantities
from draftboard.record.telemetry import Series
from nvml_library import MEMORY, UUIDS, drive, gpu, scenario, series

pytestmark = pytest.mark.needs("gcc")

FORMS = {
    "2,3": (2, 3),
    "1": (1,),
    f"GPU-{UUIDS[3]},GPU-{UUIDS[0]}": (3, 0),
    "GPU-00000001": (1,),
    "": (0, 1, 2, 3),
}
"""CUDA_VISIBLE_DEVICES and the GPUs that CUDA would then number 0, 1, ..."""


def values(one: dict[str, Series], name: str) -> set[float]:
    assert one[name].status == "ok", one[name]
    return set(one[name].values)


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST"])
def test_nvml_reads_the_gpus_that_torch_names_whatever_cuda_sees(order: str) -> None:
    found = drive(
        *(
            scenario(*map(gpu, seen), CUDA_VISIBLE_DEVICES=form, CUDA_DEVICE_ORDER=order)
            for form, seen in FORMS.items()
        )
    )
    for (window,), seen in zip(found, FORMS.values(), strict=True):
        busy = [values(device.series, "gpu_busy_pct") for device in window.devices]
        assert busy == [{10.0 * (index + 1)} for index in seen]
        names = [hashlib.sha256(f"GPU-{UUIDS[index]}".encode()).hexdigest()[:12] for index in seen]
        assert [device.uuid_sha256 for device in window.devices] == names


def test_nvml_goes_by_pci_address_without_a_uuid_and_by_nothing_else() -> None:
    by_bus = series(scenario(gpu(uuid=None, pci="0000:01:00.0")))
    assert values(by_bus, "gpu_busy_pct") == {40.0}
    for lost in (gpu(uuid=None), gpu(uuid="another")):
        missing = series(scenario(lost))
        assert {one.status for one in missing.values()} == {"error"}
        assert set(missing) == {one.name for one in quantities.ALL}


@pytest.mark.parametrize("change", [{"name": "Another GPU"}, {"memory_bytes": MEMORY // 2}])
def test_nvml_refuses_by_pci_and_notes_by_uuid_a_gpu_that_is_not_as_described(
    change: dict[str, object],
) -> None:
    by_bus = series(scenario(gpu(uuid=None, pci="0000:01:00.0", **change)))["power_w"]
    assert by_bus.status == "error" and "torch sees" in (by_bus.detail or "") and by_bus.values == ()
    ((window,),) = drive(scenario(gpu(**change)))
    assert window.devices[0].series["power_w"].status == "ok"
    assert "torch sees" in window.devices[0].notes[0]


def test_nvml_units_are_watts_joules_bytes_and_percent() -> None:
    begin = {"at": 0.0, "do": "begin", "env": {"FAKE_ENERGY": "7000000"}}
    end = {"at": 10.0, "do": "end", "env": {"FAKE_ENERGY": "10000000"}}
    one = series(scenario(steps=[begin, {"at": 5.0, "do": "poll"}, end], FAKE_POWER="300000"))
    assert values(one, "power_w") == {300.0} and one["power_w"].unit == "W"
    assert one["energy_j"].values == (7000.0, 10000.0) and one["energy_j"].at_s == (0.0, 10.0)
    assert values(one, "pcie_sent_bytes_per_s") == {2000.0}
    assert values(one, "pcie_received_bytes_per_s") == {5000.0}
    assert values(one, "memory_used_bytes") == {2e9}
    assert (values(one, "sm_clock_mhz"), values(one, "memory_clock_mhz")) == ({1980.0}, {3201.0})
    assert values(one, "temperature_c") == {61.0}


def test_nvml_means_over_the_window_by_gpm() -> None:
    one = series(scenario())
    found = {q.name: one[q.name].values for q in quantities.WINDOWED}
    expected = {"sm_util_pct": 2.5, "sm_occupancy_pct": 3.5, "tensor_active_pct": 5.5}
    assert found == {name: (v,) for name, v in {**expected, "dram_bandwidth_pct": 10.5}.items()}
    old = series(scenario(FAKE_GPM="0"))
    assert {old[q.name].status for q in quantities.WINDOWED} == {"unsupported"}
    partly = series(scenario(FAKE_GPM_WITHOUT="5"))
    assert partly["tensor_active_pct"].status == "unsupported" and partly["tensor_active_pct"].values == ()
    assert partly["sm_util_pct"].status == "ok"


def test_nvml_driver_samples_are_placed_within_the_window() -> None:
    busy = series(scenario())["gpu_busy_pct"]
    assert busy.source == "driver's samples"
    assert len(busy.values) > 50 and min(busy.at_s) >= 0 and max(busy.at_s) <= 10
    assert len(set(busy.at_s)) == len(busy.at_s) and list(busy.at_s) == sorted(busy.at_s)


def exported() -> list[str]:
    source = (Path(__file__).parent / "fake_nvml.c").read_text()
    return [name for name in re.findall(r"^int (nvml\w+)\(", source, re.M) if name != "nvmlShutdown"]


POLLED_POWER = "polled: averaged over 1 s on Ampere (except GA100) or newer, instantaneous on GA100 and older"
FALLBACKS = {
    "nvmlDeviceGetSamples": {"gpu_busy_pct": "polled", "memory_busy_pct": "polled"},
    "nvmlDeviceGetFieldValues": {"power_w": POLLED_POWER},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_used_bytes": "with the driver's reserve"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_reasons": "throttle reasons"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"foreign_processes": "older list"},
}
LOST = {
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetPcieThroughput": {"pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"},
    "nvmlDeviceGetHandleByUUID": {q.name for q in quantities.ALL},
    "nvmlInitWithFlags": {q.name for q in quantities.ALL},
    **{
        f"nvmlGpm{name}": {q.name for q in quantities.WINDOWED}
        for name in ("QueryDeviceSupport", "SampleAlloc", "SampleGet", "MetricsGet")
    },
}
"""What goes missing when one call is not supported; other calls have another way or only describe."""


@pytest.mark.parametrize("code, status", [(3, "unsupported"), (4, "no_permission"), (15, "error")])
def test_nvml_each_call_refused_in_turn_is_a_status_and_never_a_zero(code: int, status: str) -> None:
    calls = exported()
    found = drive(*(scenario(FAKE_REFUSE=f"{call}={code}") for call in calls))
    for call, (window,) in zip(calls, found, strict=True):
        one = window.devices[0].series
        assert set(one) == {q.name for q in quantities.ALL}
        lost = {name for name, value in one.items() if value.status != "ok"}
        assert lost == LOST.get(call, set()), call
        assert all(one[name].status == status and one[name].values == () for name in lost), call
        for name, source in FALLBACKS.get(call, {}).items():
            assert one[name].source == source, call


def test_nvml_without_any_way_left_nothing_is_made_up() -> None:
    both = "nvmlDeviceGetSamples=3,nvmlDeviceGetUtilizationRates=4"
    busy = series(scenario(FAKE_REFUSE=both))["gpu_busy_pct"]
    assert (busy.status, busy.values, busy.source) == ("no_permission", (), None)
    assert "driver's samples" in (busy.detail or "") and "polled" in (busy.detail or "")


def test_nvml_samples_not_found_fall_back_to_polling() -> None:
    busy = series(scenario(FAKE_REFUSE="nvmlDeviceGetSamples=6"))["gpu_busy_pct"]
    assert (busy.source, set(busy.values), len(busy.values)) == ("polled", {10.0}, 10)


def test_nvml_a_field_answers_for_itself() -> None:
    assert values(series(scenario(FAKE_FIELD_CODE="3")), "power_w") == {250.0}


def test_nvml_values_that_cannot_be_are_dropped_and_counted() -> None:
    rates = {"FAKE_REFUSE": "nvmlDeviceGetSamples=3", "FAKE_BUSY": "4294967295"}
    busy = series(scenario(**rates))["gpu_busy_pct"]
    assert (busy.status, busy.values, busy.dropped) == ("error", (), 10)
    late = [{"at": 0.0, "do": "begin"}, {"at": 1.0, "do": "poll", "env": {"FAKE_BUSY": "30"}}]
    some = series(scenario(steps=[*late, {"at": 2.0, "do": "end", "env": {"FAKE_BUSY": "101"}}], **rates))
    assert (some["gpu_busy_pct"].values, some["gpu_busy_pct"].dropped) == ((30.0,), 1)


def test_nvml_a_call_that_fails_midway_keeps_what_was_read() -> None:
    lost = {"FAKE_REFUSE": "nvmlDeviceGetTemperature=15"}
    steps = [{"at": 0.0, "do": "begin"}, {"at": 1.0, "do": "poll"}, {"at": 2.0, "do": "end", "env": lost}]
    heat = series(scenario(steps=steps))["temperature_c"]
    assert (heat.status, heat.values) == ("ok", (61.0,)) and "1 reads failed" in (heat.detail or "")


@pytest.mark.parametrize(
    "named, env",
    [
        ({"mig": f"MIG-{UUIDS[2]}"}, {"CUDA_VISIBLE_DEVICES": f"MIG-{UUIDS[2]}", "FAKE_MIG": "1"}),
        ({}, {"FAKE_ONLY_SLICE": "1"}),
    ],
)
def test_nvml_a_slice_has_its_own_numbers_and_its_cards_power(
    named: dict[str, str], env: dict[str, str]
) -> None:
    ((window,),) = drive(scenario(gpu(2, name="Slice of a GPU", memory_bytes=16, **named), **env))
    (device,) = window.devices
    assert device.kind == "mig" and "whole card" in device.notes[0]
    one = device.series
    assert one["gpu_busy_pct"].status == "unsupported" and one["gpu_busy_pct"].values == ()
    assert values(one, "power_w") == {300.0} and one["energy_j"].status == "ok"
    assert values(one, "sm_util_pct") == {2.5 + 7}, "GPM has to be asked about the slice"


def test_nvml_a_slice_that_nobody_names_is_its_card_and_says_so() -> None:
    ((window,),) = drive(scenario(gpu(2, name="Slice of a GPU", memory_bytes=16), FAKE_MIG="1"))
    assert window.devices[0].kind == "gpu" and "not known" in window.devices[0].notes[0]


def test_nvml_init_and_shutdown_are_balanced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failed = {"FAKE_REFUSE": "nvmlInitWithFlags=9"}
    drive(scenario(FAKE_LOG=str(log)), scenario(FAKE_LOG=str(log), **failed), scenario(FAKE_LOG=str(log)))
    assert log.read_text().split() == ["init", "shutdown"] * 2


def test_nvml_bindings_that_are_missing_or_wrong_are_named(tmp_path: Path) -> None:
    for name, text in (("wrong", ""), ("missing", "raise ImportError('nothing here')")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pynvml.py").write_text(text)
        one = series(scenario(), PYTHONPATH=str(tmp_path / name))["power_w"]
        assert one.status == "error" and "pip install nvidia-ml-py" in (one.detail or "")


def test_nvml_bindings_that_lack_one_function_lose_one_quantity(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import sys\n"
        f"sys.path.remove({str(tmp_path)!r})\n"
        "del sys.modules['pynvml']\n"
        "import pynvml\n"
        "del pynvml.nvmlDeviceGetTemperature\n"
    )
    one = series(scenario(), PYTHONPATH=str(tmp_path))
    assert {name for name, value in one.items() if value.status != "ok"} == {"temperature_c"}
    assert one["temperature_c"].status == "unsupported"
    assert "too old" in (one["temperature_c"].detail or "")


def test_nvml_driver_samples_keep_their_moments_however_long_the_call_took() -> None:
    steps = [{"at": 0.0, "do": "begin"}, {"at": 2.0, "do": "poll"}]
    steps += [{"at": 4.0, "do": "poll", "env": {"FAKE_STALL": "nvmlDeviceGetSamples"}}]
    busy = series(scenario(steps=[*steps, {"at": 10.0, "do": "end"}]))["gpu_busy_pct"]
    assert len(busy.at_s) > 50 and list(busy.at_s) == sorted(set(busy.at_s))
