"""Who else computes on a GPU: others are counted, and unknown where a container hides ids or processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftboard.judge.telemetry import summarise
from draftboard.judge.telemetry_validity import reasons
from draftboard.measure.telemetry import process
from draftboard.record.telemetry import Telemetry
from nvml_library import drive, scenario, series
from record_factory import make_arm, plain_trace
from test_nvml import values

pytestmark = pytest.mark.needs("gcc")


@pytest.mark.parametrize("listed, foreign", [("1", 0.0), ("3", 2.0)])
def test_nvml_all_processes_but_ours_are_foreign(listed: str, foreign: float) -> None:
    assert values(series(scenario(FAKE_PROCESSES=listed)), "foreign_processes") == {foreign}


@pytest.mark.parametrize(
    "listed, said",
    [
        ({"FAKE_PROCESSES": "0"}, "does not hold ours, 100000"),
        ({"FAKE_PID": "777"}, "does not hold ours"),
        ({"FAKE_PID": "777", "FAKE_PROCESSES": "3"}, "does not hold ours"),
        ({"FAKE_HIDDEN": "1"}, "does not hold ours"),
        ({"FAKE_PROCESSES": "2", "FAKE_HIDDEN": "1"}, "hides the id of one"),
        ({"FAKE_PRIVATE": "1"}, "may hold ours alone"),
    ],
    ids=["nobody", "another namespace's id", "three of them", "no id", "another without id", "a container"],
)
def test_nvml_ids_that_a_container_hides_make_others_unknown_and_neither_foreign_nor_none(
    listed: dict[str, str], said: str
) -> None:
    ((window,),) = drive(scenario(**listed))
    one = window.devices[0].series["foreign_processes"]
    assert (one.status, one.values) == ("unsupported", ()) and said in (one.detail or "")
    told = Telemetry(window, replies=1, tokens=1, software={})
    assert any(
        "whether others computed on it is not known" in text for text in summarise(told, None).warnings
    )
    arm = make_arm([plain_trace()], telemetry=told)
    assert not any("other processes" in reason for reason in reasons([arm], arm))


def test_nvml_processes_beside_ours_in_a_container_are_foreign() -> None:
    assert values(series(scenario(FAKE_PRIVATE="1", FAKE_PROCESSES="2")), "foreign_processes") == {1.0}


def test_nvml_one_reading_that_hides_an_id_makes_a_window_of_zeros_unknown() -> None:
    hidden = {"FAKE_PROCESSES": "2", "FAKE_HIDDEN": "1"}
    steps = [{"at": 0.0, "do": "begin"}, {"at": 1.0, "do": "poll"}, {"at": 2.0, "do": "poll", "env": hidden}]
    steps += [{"at": 3.0, "do": "end", "env": {"FAKE_PROCESSES": "1", "FAKE_HIDDEN": "0"}}]
    assert series(scenario(steps=steps))["foreign_processes"].status == "unsupported"
    seen = [*steps[:2], {"at": 1.5, "do": "poll", "env": {"FAKE_PROCESSES": "2"}}, *steps[2:]]
    assert set(series(scenario(steps=seen))["foreign_processes"].values) == {0.0, 1.0}


def test_nvml_ids_of_a_namespace_are_told_from_the_machines(tmp_path: Path) -> None:
    assert process._has_own_ids(tmp_path) and not process._has_own_ids(tmp_path / "none")
