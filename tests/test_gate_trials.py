"""The experiments on the gate: each injection changes what it names and no more, and the table adds up."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure import decode as sound
from draftboard.measure.builds import Build
from draftboard.measure.clock import Clock
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from scripted import Scripted
from tiny import tiny_target

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "harness" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    import gate_trials

    yield gate_trials
    for name in ("gate_trials", "gate_injections"):
        sys.modules.pop(name, None)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("edited", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["edited"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build() -> Build:
    return Build("base", ROOT, Path(sys.executable))


def test_slow_sleeps_a_share_of_the_round_outside_of_every_span(
    bench: Any, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench.slow(build, 0.5, tmp_path / "copy")
    edited = load(made.root / "harness/draftboard/measure/clock.py")
    slept: list[float] = []
    ticks = iter(float(n) for n in range(100))
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    clock = edited.Clock(torch.device("cpu"))
    spans = []
    for name in ("draft", "verify", "commit"):
        with clock.span(name) as span:
            spans.append(span)
    assert slept == [0.5 * 5]
    assert [span.ms for span in spans] == [1e3] * 3


def test_blind_cuts_every_draft_and_answers_the_same(bench: Any, build: Build, tmp_path: Path) -> None:
    made = bench.blind(build, 1, tmp_path / "copy")
    edited = load(made.root / "harness/draftboard/measure/decode.py")
    target, sampler = tiny_target(), Sampler(Sampling(), Randomness(0, torch.device("cpu")))
    replies = [
        module.decode(
            target, Scripted(lambda ids: ids[-1:] * 3, k=3), torch.tensor([5, 6, 7]), sampler,
            Clock(torch.device("cpu")), max_new_tokens=12,
        )
        for module in (sound, edited)
    ]  # fmt: skip
    assert replies[0].token_ids == replies[1].token_ids
    assert max(replies[0].rounds.proposed) == 3
    assert set(replies[1].rounds.proposed) == {0, 1}


def test_an_injection_that_finds_no_place_is_refused(
    bench: Any, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["gate_injections"], "DECODE", Path("harness/draftboard/errors.py"))
    with pytest.raises(SystemExit, match="occurs 0 times"):
        bench.blind(build, 5, tmp_path / "copy")


Held = list[tuple[str, str]]


@pytest.fixture
def held(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Experiment and condition of each gate, which takes no time."""
    gates: Held = []

    def attempt(experiment: str, condition: str, make: Any, base: Build, given: Any) -> dict[str, Any]:
        gates.append((experiment, condition))
        return line(experiment, "pass" if len(gates) > 1 else "regression", condition)

    monkeypatch.setattr(bench, "_attempt", attempt)
    monkeypatch.setattr(bench, "at_commit", lambda ref, root: Build("base", Path("abc"), Path("python")))
    monkeypatch.setattr(signal, "signal", lambda *words: None)
    return gates


def line(experiment: str, outcome: str, condition: str = "idle") -> dict[str, Any]:
    return {
        "experiment": experiment, "condition": condition, "commit": "abc", "outcome": outcome, "sessions": 1,
        "seconds": 30.0, "pace": [0.01, 0.0, 0.02], "acceptance": {"guess-k4": 0.0}, "because": ["words"],
    }  # fmt: skip


def call(bench: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["x", *words, "--out", str(out)])
    bench.main()


def test_an_experiment_goes_on_where_it_stopped(
    bench: Any,
    held: Held,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "lines.jsonl"
    call(bench, monkeypatch, out, "null", "--runs", "4", "--condition", "idle")
    with out.open("a") as file:
        file.write('{"experiment": "null", "cond')
    call(bench, monkeypatch, out, "null", "--runs", "6")
    idle, loaded = ("null", "idle"), ("null", "loaded")
    assert held == [idle, idle, loaded, loaded, idle, loaded]
    assert [json.loads(line)["outcome"] for line in out.read_text().splitlines()] == [
        "regression", *["pass"] * 5
    ]  # fmt: skip
    assert (
        "| null | idle | 3 | 1 | 2 | 0 | 0 | 0 | 0 | 1.0 | +1.0% (+1.0% to +1.0%) | +0.0% "
        in capsys.readouterr().out
    )


def test_all_runs_what_is_missing_in_order(
    bench: Any, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lines.jsonl"
    call(bench, monkeypatch, out, "slow", "--runs", "1")
    call(bench, monkeypatch, out, "all", "--runs", "2")
    names = ["slow", "null", "null", "slow", "blind", "blind", "creep", "creep", "creep"]
    assert [experiment for experiment, _ in held] == names
    assert len(set(held[-3:])) == 3


def test_no_gate_begins_when_the_time_is_up(
    bench: Any,
    held: Held,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ticks = iter([0.0, 0.0, 59.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    call(bench, monkeypatch, tmp_path / "lines.jsonl", "all", "--minutes", "1")
    assert held == [("null", "idle"), ("null", "loaded")]
    assert "time is up before null, idle" in capsys.readouterr().out


def test_each_line_is_on_disk_before_the_next_gate(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    out, seen = tmp_path / "lines.jsonl", []

    def attempt(experiment: str, condition: str, make: Any, base: Build, given: Any) -> dict[str, Any]:
        seen.append(out.read_text().count("\n") if out.exists() else 0)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return line(experiment, "pass", condition)

    monkeypatch.setattr(bench, "_attempt", attempt)
    call(bench, monkeypatch, out, "null")
    assert seen == [0, 1, 2]


def test_gates_of_two_commits_are_kept_apart(
    bench: Any, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lines.jsonl"
    call(bench, monkeypatch, out, "null", "--runs", "1")
    asked: list[str] = []
    monkeypatch.setattr(
        bench, "at_commit", lambda ref, root: (asked.append(ref), Build("base", Path("def"), Path("p")))[1]
    )
    with pytest.raises(SystemExit, match="holds gates of abc"):
        call(bench, monkeypatch, out, "null", "--runs", "2")
    assert asked == ["abc"]


def test_a_gate_that_cannot_be_held_is_a_line_and_two_end_the_script(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: Any, **more: Any) -> None:
        raise UserError("the base build's run ended with code 1: boom")

    monkeypatch.setattr(bench, "one_gate", broken)
    monkeypatch.setattr(bench, "at_commit", lambda ref, root: Build("base", Path("abc"), Path("python")))
    out = tmp_path / "lines.jsonl"
    with pytest.raises(SystemExit, match="boom"):
        call(bench, monkeypatch, out, "null")
    assert [json.loads(one)["outcome"] for one in out.read_text().splitlines()] == ["failed", "failed"]


def test_the_load_is_a_process_that_computes_and_ends_with_the_gate(bench: Any) -> None:
    with bench._load(True):
        workers = [psutil.Process(one.pid) for one in multiprocessing.active_children()]
        assert len(workers) == 1
        while min(sum(worker.cpu_times()[:2]) for worker in workers) < 0.05:
            time.sleep(0.01)
    assert not any(worker.is_running() for worker in workers)
    with bench._load(False):
        assert not multiprocessing.active_children()


def test_the_load_ends_when_the_script_is_killed(bench: Any) -> None:
    """A worker whose parent is another process than the script is an orphan."""
    bench._burn(os.getppid() + 1)
