"""The memory of a run: read where the system tells it, recorded for each arm, judged by what it must be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftboard.judge.memory import arm_ratio, cache_bytes, loading_ratio
from draftboard.measure import runner
from draftboard.measure.memory import NO_REPLY, NOT_TOLD, MemoryMeter, ProcessCounter, with_memory
from draftboard.record.journal import Journal
from draftboard.record.records import Memory, Weights
from draftboard.record.store import Store, load
from draftboard.show.memory import arm_words, loading_words
from record_factory import make_arm, make_baseline, make_run, make_trace
from tiny_folder import save_task, small_plan

CPU = torch.device("cpu")
MIB = 2**20


class Dictated:
    """Says 10 bytes at first; a stretch's peak is what the test sets."""

    top = 0

    def now(self) -> int:
        return 10

    def peak(self) -> int:
        return self.top

    def reset(self) -> None:
        self.top = 0


def test_a_stretch_is_told_with_what_was_there_before() -> None:
    counter = Dictated()
    meter = MemoryMeter(CPU, counter)
    counter.top = 70
    assert meter.read() == Memory(10, 70)
    meter.begin()
    counter.top = 40
    assert (meter.read(), meter.missing) == (Memory(10, 40), None)


def test_a_system_that_does_not_tell_is_a_reason_and_no_zero(tmp_path: Path) -> None:
    counter = ProcessCounter()
    counter.folder = tmp_path
    meter = MemoryMeter(CPU, counter)
    meter.begin()
    assert meter.read() is None and meter.missing is not None and meter.missing.startswith(NOT_TOLD)
    (tmp_path / "status").write_text("Name: x\nVmRSS:\t 3 kB\n")
    assert counter.now() == 3 * 1024
    with pytest.raises(OSError, match="no VmHWM"):
        counter.peak()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no peak of memory to read here")
def test_the_kernels_peak_is_of_the_stretch_alone() -> None:
    meter = MemoryMeter(CPU)
    large = torch.ones(64 * MIB, dtype=torch.uint8)
    meter.begin()
    with_large = meter.read()
    del large
    meter.begin()
    without = meter.read()
    assert with_large is not None and without is not None
    assert with_large.before_bytes == without.before_bytes
    assert with_large.peak_bytes - without.peak_bytes > 48 * MIB


def entry(arm: str, memory: Memory | None, missing: str | None = None) -> dict[str, object]:
    return {"arm": arm, "trace": make_trace(), "memory": memory, "memory_missing": missing}


def test_an_arm_gets_the_largest_of_its_replies(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    told = {"a": Memory(10, 50), "b": Memory(10, 99), "c": None}
    for arm, memory in [("a", Memory(30, 60)), *told.items()]:
        journal.append("trace", entry(arm, memory, None if memory else "why"))
    arms = with_memory([make_arm((), id=name) for name in "abcd"], journal)
    assert [(arm.memory, arm.memory_missing) for arm in arms] == [
        (Memory(10, 50), None), (Memory(10, 99), None), (None, "why"), (None, NO_REPLY),
    ]  # fmt: skip


def test_the_ratio_is_over_all_weights_and_the_cache() -> None:
    base = make_baseline((), memory=Memory(1000, 1000 + 4096))
    arm = make_arm((), weights=Weights(2000), memory=Memory(1000, 80_000))
    run = make_run([base, arm], loading=Memory(0, 2 * (4096 + 196_608)), loading_missing=None)
    cache = 2 * 2 * 3 * 8 * 512 * 4
    assert cache_bytes(run.target, "float32") == cache == 2 * cache_bytes(run.target, "bfloat16")
    assert arm_ratio(run, [base, arm], arm).value == pytest.approx(79_000 / (4096 + 2000 + cache))
    assert arm_ratio(run, [base, arm], base).value == pytest.approx(4096 / (4096 + 2000 + cache))
    assert loading_ratio(run).value == pytest.approx(2 * (4096 + 196_608) / (4096 + cache))
    assert arm_words(run, [base, arm], arm).startswith("0.1 MB at the peak, over 0.0 MB before the target")
    assert "2.00 x the target's weights and cache" in loading_words(run)


def test_what_was_not_recorded_is_said() -> None:
    base, arm = make_baseline(()), make_arm(())
    run = make_run([base, arm])
    found = arm_ratio(run, [base, arm], arm)
    assert (found.value, found.missing) == (None, "not recorded")
    assert arm_words(run, [base, arm], arm) == loading_words(run) == "not known: not recorded"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no peak of memory to read here")
def test_a_run_records_the_memory_of_each_arm_and_of_loading(tmp_path: Path) -> None:
    save_task(tmp_path)
    plan = small_plan(tmp_path, max_new_tokens=4, warmup=0)
    out = runner.run_plan(plan, Store(tmp_path / "out"), lambda event: None, start_method="fork")
    run, arms = load(out.folder)
    memories = [run.loading, *(arm.memory for arm in arms)]
    assert all(one is not None and one.peak_bytes >= one.before_bytes > MIB for one in memories)
    assert [run.loading_missing, *(arm.memory_missing for arm in arms)] == [None, None, None]
    older = replace(arms[0], memory=None, memory_missing="not recorded")
    assert arm_ratio(run, arms, older).value is None
