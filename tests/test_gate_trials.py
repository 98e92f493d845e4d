"""The experiments on the gate: each injection changes what it names and no more, and the table adds up."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

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


def test_blind_drafts_nothing_in_some_rounds_and_answers_the_same(
    bench: Any, build: Build, tmp_path: Path
) -> None:
    made = bench.blind(build, 2, tmp_path / "copy")
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
    assert 0 not in replies[0].rounds.proposed[:3]
    assert replies[1].rounds.proposed[1] == 0 and replies[1].rounds.proposed[0] > 0


def test_an_injection_that_finds_no_place_is_refused(
    bench: Any, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["gate_injections"], "DECODE", Path("harness/draftboard/errors.py"))
    with pytest.raises(SystemExit, match="occurs 0 times"):
        bench.blind(build, 5, tmp_path / "copy")


def test_an_experiment_goes_on_where_it_stopped(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def one_gate(experiment: str, number: int, base: Build, suite: str) -> dict[str, Any]:
        seen.append(number)
        return {
            "experiment": experiment, "condition": "idle", "outcome": "pass" if number else "regression",
            "sessions": 1, "seconds": 30.0, "pace": [0.01, 0.0, 0.02], "acceptance": {"guess-k4": 0.0},
        }  # fmt: skip

    monkeypatch.setattr(bench, "one_gate", one_gate)
    monkeypatch.setattr(bench, "at_commit", lambda ref, root: Build("base", ROOT, Path(sys.executable)))
    out = tmp_path / "lines.jsonl"
    for runs in ("2", "3"):
        monkeypatch.setattr(sys, "argv", ["x", "null", "--runs", runs, "--out", str(out)])
        bench.main()
    assert seen == [0, 1, 2]
    assert [json.loads(line)["outcome"] for line in out.read_text().splitlines()] == [
        "regression", "pass", "pass",
    ]  # fmt: skip
    assert (
        "| null | idle | 3 | 1 | 2 | 0 | 0 | 0 | 1.0 | +1.0% (+1.0% to +1.0%) | +0.0% "
        in capsys.readouterr().out
    )
