"""NVML from window to window: calls that hang or fail once, the least time of GPM, what a window forgets."""

from __future__ import annotations

from typing import Any

import pytest

from draftboard.measure.telemetry import quantities
from draftboard.record.telemetry import Window
from nvml_library import drive, scenario
from test_nvml import FALLBACKS, LOST, exported

pytestmark = pytest.mark.needs("gcc")

OPENING = {"nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"}
"""Calls of the opening, which has a limit of its own: late is good enough."""
GPM = {quantity.name for quantity in quantities.WINDOWED}


def window(at: float, seconds: float = 10.0, first: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The steps of a window with a poll a second; `first` is dictated from its beginning on."""
    polls = [{"at": at + i, "do": "poll"} for i in range(1, int(seconds))]
    begin = {"at": at, "do": "begin", "env": first or {}}
    return [begin, *polls, {"at": at + seconds, "do": "end"}]


def lost(one: Window) -> set[str]:
    return {name for name, series in one.devices[0].series.items() if series.status != "ok"}


def test_nvml_each_call_hanging_in_turn_is_left_and_no_window_is_longer_for_it() -> None:
    calls = exported()
    steps = [{"at": 0.0, "do": "begin"}, *window(100.0), *window(200.0)]
    found = drive(*(scenario(steps=steps, FAKE_STALL=call) for call in calls))
    for call, (first, second) in zip(calls, found, strict=True):
        assert (first.seconds, second.seconds) == (10.0, 10.0), call
        assert lost(second) == (set() if call in OPENING else LOST.get(call, set())), call
        series = second.devices[0].series
        for name in lost(second):
            assert series[name].status == "error" and "left after a call of" in (series[name].detail or "")
        for name, source in FALLBACKS.get(call, {}).items():
            assert series[name].source == source, call


def test_nvml_a_slow_first_reading_is_before_the_window() -> None:
    for call in ("nvmlDeviceGetTemperature", "nvmlDeviceGetSamples", "nvmlGpmQueryDeviceSupport"):
        ((one,),) = drive(scenario(steps=window(100.0), FAKE_STALL=call))
        assert one.seconds == 10.0, call


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmSampleAlloc", "nvmlGpmMetricsGet"])
def test_nvml_gpm_that_failed_in_one_window_is_read_in_the_next(call: str) -> None:
    for code, kept in ((15, "ok"), (4, "no_permission")):
        steps = [
            *window(0.0, first={"FAKE_REFUSE": f"{call}={code}"}),
            *window(100.0, first={"FAKE_REFUSE": ""}),
        ]
        ((first, second),) = drive(scenario(steps=steps))
        assert lost(first) == GPM
        assert {second.devices[0].series[name].status for name in GPM} == {kept}


def test_nvml_gpm_over_less_than_100_ms_is_not_sampled() -> None:
    ((short, usual),) = drive(scenario(steps=[*window(0.0, seconds=0.05), *window(1.0)]))
    for name in GPM:
        series = short.devices[0].series[name]
        assert (series.status, series.values) == ("not_sampled", ()) and "0.1 s" in (series.detail or "")
        assert usual.devices[0].series[name].status == "ok"


def test_nvml_a_window_tells_of_its_own_failures_and_of_all_ways_left() -> None:
    fails = {"FAKE_REFUSE": "nvmlDeviceGetTemperature=15,nvmlDeviceGetFieldValues=3"}
    before = [{"at": 0.0, "do": "begin", "env": {"FAKE_REFUSE": "nvmlDeviceGetFieldValues=3"}}]
    failing = [{"at": 1.0, "do": "poll"}, {"at": 2.0, "do": "poll", "env": fails}, {"at": 3.0, "do": "end"}]
    ((first, second),) = drive(scenario(steps=[*before, *failing, *window(100.0, first={"FAKE_REFUSE": ""})]))
    heat = [one.devices[0].series["temperature_c"] for one in (first, second)]
    assert "2 reads failed" in (heat[0].detail or "") and heat[0].status == "ok"
    assert (heat[1].status, heat[1].detail) == ("ok", None)
    assert "instant" in (second.devices[0].series["power_w"].detail or "")


def test_nvml_a_failure_does_not_hide_which_ways_were_left() -> None:
    left = "nvmlDeviceGetFieldValues=3"
    late = {"FAKE_REFUSE": f"{left},nvmlDeviceGetPowerUsage=15"}
    steps = [*window(0.0)[:-1], {"at": 10.0, "do": "end", "env": late}]
    ((one,),) = drive(scenario(steps=steps, FAKE_REFUSE=left))
    detail = one.devices[0].series["power_w"].detail or ""
    assert "1 reads failed" in detail and "instant" in detail
