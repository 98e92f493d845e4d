"""Running out of memory costs one arm, in whatever way it is told, and leaves no trace in the next."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure import runner
from draftboard.measure.arms import describe
from draftboard.measure.events import Event, Ready, Replied
from draftboard.measure.loading import load_target
from draftboard.measure.out_of_memory import ADVICE, death_words, out_of_memory
from draftboard.measure.plan import Plan
from draftboard.record.records import Arm
from draftboard.record.store import Store, load
from draftboard.record.suites import ArmSpec
from tiny_folder import save_task, small_plan

ODD = Path(__file__).parent / "odd_drafters"
RAISED = ["on_gpu", "on_cpu", "really", "in_python", "in_a_file"]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.syspath_prepend(str(ODD))
    save_task(tmp_path)
    return small_plan(tmp_path, max_new_tokens=8, warmup=0, limit=2)


def starving(way: str, rounds: int) -> ArmSpec:
    return ArmSpec(str(ODD / "starving.py"), options={"way": way, "rounds": rounds})


def run(plan: Plan, tmp_path: Path, *arms: ArmSpec) -> tuple[list[Arm], list[Event]]:
    events: list[Event] = []
    chosen = replace(plan, arms=(ArmSpec("none"), *arms, ArmSpec("ngram", 3)))
    out = runner.run_plan(chosen, Store(tmp_path / "out"), events.append, start_method="fork")
    return load(out.folder)[1], events


@pytest.mark.parametrize("way", RAISED)
def test_an_arm_that_runs_out_of_memory_is_a_row_with_advice(plan: Plan, tmp_path: Path, way: str) -> None:
    (plain, starved, lookup), events = run(plan, tmp_path, starving(way, 10))
    assert starved.error is not None and starved.error.startswith("out of memory")
    assert "--max-context" in starved.error and "\n" not in starved.error
    assert 0 < len(starved.traces) < 4, "what was measured before is kept"
    assert [len(arm.traces) for arm in (plain, lookup)] == [4, 4] and lookup.error is None
    assert sum(isinstance(event, Ready) for event in events) == 2, "the process was not replaced"
    assert sum(isinstance(event, Replied) for event in events) == 8 + len(starved.traces)


@pytest.mark.parametrize("way", ["on_gpu", "by_the_kernel"])
def test_a_drafter_without_room_to_be_built_is_a_row(plan: Plan, tmp_path: Path, way: str) -> None:
    (plain, starved, lookup), events = run(plan, tmp_path, starving(way, -1))
    assert starved.error is not None and ADVICE in starved.error and starved.traces == ()
    assert [len(arm.traces) for arm in (plain, lookup)] == [4, 4] and lookup.error is None
    assert sum(isinstance(event, Ready) for event in events) == 1


def test_a_process_killed_by_the_kernel_costs_its_arm(plan: Plan, tmp_path: Path) -> None:
    (plain, starved, lookup), _ = run(plan, tmp_path, starving("by_the_kernel", 10))
    assert starved.error == (
        f"the worker process was killed (signal 9), most likely because memory ran out ({ADVICE}) in this arm"
    )
    assert 0 < len(starved.traces) < 4
    assert [len(arm.traces) for arm in (plain, lookup)] == [4, 4]


def test_several_arms_may_run_out_one_after_the_other(plan: Plan, tmp_path: Path) -> None:
    arms, _ = run(plan, tmp_path, starving("on_cpu", -1), starving("on_gpu", 3), starving("in_python", 5))
    assert [arm.error is None for arm in arms] == [True, False, False, False, True]


def test_a_target_without_room_is_refused_with_advice(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("draftboard.measure.loading.read_model", no_room)
    with pytest.raises(UserError, match="out of memory: tried to allocate 99 bytes; use a smaller"):
        run(plan, tmp_path)
    with pytest.raises(RuntimeError):
        load_target(plan.target, dtype=torch.float32, device=torch.device("cpu"))


def test_each_way_of_telling_is_known_and_nothing_else_is() -> None:
    known = [
        torch.OutOfMemoryError("x"),
        MemoryError(),
        OSError(errno.ENOMEM, "x"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes"),
    ]
    others = [
        RuntimeError("shape mismatch"),
        ValueError("out of memory"),
        OSError(errno.ENOENT, "x"),
        KeyError(),
    ]
    assert all(map(out_of_memory, known)) and not any(map(out_of_memory, others))


def test_the_words_name_the_size_and_the_advice() -> None:
    said = describe(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\nmore"))
    assert said == f"out of memory: tried to allocate 2.00 GiB; {ADVICE}"
    assert describe(MemoryError()) == f"out of memory; {ADVICE}"
    assert death_words(7) == "ended with code 7" and death_words(-11) == "was ended by signal 11"
