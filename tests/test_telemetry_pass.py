"""The telemetry pass within a run: what it leaves in the records, and that nothing in it fails a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftboard.judge.summary import rows
from draftboard.judge.telemetry import summarise
from draftboard.measure import machine, runner, telemetry_pass
from draftboard.measure.events import Event, Note, Replied
from draftboard.measure.plan import Plan
from draftboard.measure.telemetry.request import GpuRef
from draftboard.measure.telemetry.sampler import NullSampler
from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import Store, load
from draftboard.record.suites import ArmSpec, list_suites, load_suite
from nvml_library import MEMORY, UUIDS, library
from test_runner import ODD, Events, odd
from tiny_folder import save_task, save_tiny_folder, small_plan

SECONDS = 0.2


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_folder(tmp_path_factory.mktemp("target")))


@pytest.fixture
def plan(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.syspath_prepend(str(ODD))
    save_task(tmp_path, prompts=1)
    options = {"limit": None, "telemetry_s": SECONDS}
    return small_plan(tmp_path, max_new_tokens=8, warmup=0, target=target, **options)


def run(plan: Plan, tmp_path: Path, watch: Any = None) -> tuple[RunRecord, list[Arm]]:
    watch = Events() if watch is None else watch
    return load(runner.run_plan(plan, Store(tmp_path / "results"), watch, start_method="fork").folder)


def test_telemetry_pass_samples_every_arm_and_the_machine_at_rest(plan: Plan, tmp_path: Path) -> None:
    record, arms = run(plan, tmp_path)
    assert record.idle is not None and record.idle_missing is None
    assert record.idle.seconds >= SECONDS * telemetry_pass.IDLE_SHARE
    for arm in arms:
        assert arm.telemetry is not None and arm.telemetry_missing is None
        assert arm.telemetry.window.seconds >= SECONDS
        assert arm.telemetry.tokens == 8 * arm.telemetry.replies > 0
        (processor,) = arm.telemetry.window.devices
        assert processor.series["process_rss_bytes"].status == "ok"
        assert summarise(arm.telemetry, record.idle).j_per_token_gross.value is None


def test_telemetry_pass_leaves_counts_and_times_of_the_run_alone(plan: Plan, tmp_path: Path) -> None:
    _, sampled = run(plan, tmp_path / "a")
    _, plain = run(replace(plan, telemetry_s=0.0), tmp_path / "b")
    for one, other in zip(sampled, plain, strict=True):
        assert [t.token_ids for t in one.traces] == [t.token_ids for t in other.traces]
        assert len(one.traces) == 2
    assert {arm.telemetry_missing for arm in plain} == {telemetry_pass.NOT_ASKED}


@pytest.mark.needs("gcc")
def test_telemetry_pass_puts_gpus_into_records_and_reasons_into_rows(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GpuRef("Fake GPU", UUIDS[1], None, MEMORY)
    monkeypatch.setattr(telemetry_pass, "gpus_of", lambda device: (gpu,))
    monkeypatch.setenv("LD_LIBRARY_PATH", library())
    monkeypatch.setenv("FAKE_PID", "parent")
    monkeypatch.setenv("FAKE_PROCESSES", "3")
    record, arms = run(plan, tmp_path)
    for arm, row in zip(arms, rows(record, arms), strict=True):
        assert arm.telemetry is not None
        assert arm.telemetry.software["driver"] == "580.65.06"
        assert set(arm.telemetry.window.devices[1].series["gpu_busy_pct"].values) == {20.0}
        assert "telemetry: up to 2 other processes computed on Fake GPU" in row.reasons
        assert not row.valid


def test_telemetry_sampler_that_cannot_start_costs_the_telemetry_alone(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_pass, "open_sampler", lambda request: NullSampler("error: no process"))
    record, arms = run(plan, tmp_path)
    assert {arm.telemetry_missing for arm in arms} == {"error: no process"} == {record.idle_missing}
    assert [len(arm.traces) for arm in arms] == [2, 2] and not any(arm.error for arm in arms)


def test_telemetry_of_a_gpu_that_torch_cannot_describe_costs_the_telemetry_alone(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(device: torch.device) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(telemetry_pass, "gpus_of", lost)
    _, arms = run(plan, tmp_path)
    assert all("device lost" in (arm.telemetry_missing or "") for arm in arms)


def test_telemetry_pass_in_which_an_arm_raises_or_dies_still_ends_the_run(plan: Plan, tmp_path: Path) -> None:
    raising = replace(plan, arms=(ArmSpec("none"), odd("raising", rounds=20), ArmSpec("ngram", 3)))
    _, (_, failed, lookup) = run(raising, tmp_path / "a")
    assert failed.error is None and len(failed.traces) == 2
    assert failed.telemetry is None and "no more guesses" in (failed.telemetry_missing or "")
    assert lookup.telemetry is not None
    dying = replace(plan, arms=(ArmSpec("none"), odd("dying", rounds=20), ArmSpec("ngram", 3)))
    _, (plain, dead, after) = run(dying, tmp_path / "b")
    assert plain.telemetry is not None and dead.error is None
    died = f"not sampled: the run ended within the telemetry of {dead.drafter}"
    assert dead.telemetry_missing == after.telemetry_missing == died


class WithinTelemetry(Events):
    """Interrupts the run as the telemetry of an arm begins."""

    def __init__(self, arm: str) -> None:
        super().__init__()
        self.arm = arm

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Note) and event.text.startswith(f"telemetry of {self.arm}"):
            raise KeyboardInterrupt


@pytest.mark.parametrize("arm", ["none", "ngram"])
def test_telemetry_that_was_interrupted_is_taken_on_resume(plan: Plan, tmp_path: Path, arm: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, WithinTelemetry(arm))
    events = Events()
    outcome = runner.run_plan(plan, Store(tmp_path / "results"), events, resume=True, start_method="fork")
    record, arms = load(outcome.folder)
    assert record.idle is not None
    assert all(one.telemetry is not None and len(one.traces) == 2 for one in arms)
    told = [event.text for event in events if isinstance(event, Note)]
    assert not any(isinstance(event, Replied) for event in events)
    assert "comparing replies, timing the verification" not in told
    assert len(told) == {"none": 2, "ngram": 1}[arm], "an arm that had been sampled was sampled again"


def test_a_run_that_a_version_without_graphs_closed_is_stored_on_resume(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, WithinTelemetry("ngram"))
    [file] = [path for path in tmp_path.rglob("*.jsonl") if '"closed"' in path.read_text()]
    events = [json.loads(line) for line in file.read_text().splitlines()]
    older = [
        {k: v for k, v in e["data"].items() if k != "graphs"} if e["kind"] == "closed" else e["data"]
        for e in events
    ]
    lines = [json.dumps({"kind": e["kind"], "data": data}) for e, data in zip(events, older, strict=True)]
    file.write_text("".join(f"{line}\n" for line in lines))
    outcome = runner.run_plan(plan, Store(tmp_path / "results"), Events(), resume=True, start_method="fork")
    assert {(arm.graphs, arm.graphs_missing) for arm in load(outcome.folder)[1]} == {
        (None, "its drafter captures nothing")
    }


def test_telemetry_of_an_arm_that_failed_before_says_so(plan: Plan, tmp_path: Path) -> None:
    failing = replace(plan, arms=(ArmSpec("none"), odd("raising", rounds=2)))
    _, (plain, failed) = run(failing, tmp_path)
    assert plain.telemetry is not None
    assert failed.error is not None and failed.telemetry_missing == "not sampled: the arm failed"


def test_telemetry_describes_a_gpu_by_what_no_setting_of_cuda_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = SimpleNamespace(
        name="G", uuid=UUIDS[0], total_memory=5, pci_domain_id=0, pci_bus_id=0x65, pci_device_id=0
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    cuda = torch.device("cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert machine.gpus_of(cuda) == (GpuRef("G", UUIDS[0], "0000:65:00.0", 5),)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{UUIDS[2]}")
    assert machine.gpus_of(cuda) == (GpuRef("G", UUIDS[0], "0000:65:00.0", 5, f"MIG-{UUIDS[2]}"),)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    del facts.uuid, facts.pci_bus_id
    assert machine.gpus_of(cuda) == (GpuRef("G", None, None, 5),)
    assert machine.gpus_of(torch.device("cpu")) == ()


def test_telemetry_lasts_15_s_in_every_suite_whose_figures_are_for_keeps() -> None:
    for name in list_suites():
        suite = load_suite(name)
        assert suite.telemetry_s >= 15 or suite.indicative, name
    assert load_suite("quick").telemetry_s * 8 * 3 < 60 and load_suite("smoke").telemetry_s < 1
