"""The check of a GPU, as far as it goes without one, and what the measuring path needs installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.measure import graphs
from draftboard.record.telemetry import Series
from record_factory import make_arm, make_baseline, make_run, plain_trace
from tape import TapeRecorder
from test_telemetry import gpu_window, missing, telemetry

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "harness" / "bench" / "gpu_check.py"
HARNESS = ROOT / "harness" / "draftboard"

sys.path.append(str(SCRIPT.parent))
import gpu_check  # noqa: E402
import graph_check  # noqa: E402

INSTALLED = {"torch", "transformers", "safetensors", "numpy", "pynvml", "psutil", "rich", "typer"}
"""What a CUDA image for transformers holds, and three small packages."""
BROUGHT = {"filelock"}
"""Torch itself depends on it."""
COMPILED = {"kernels.py", "row_math.py", "vectors.py"}
"""Imported only where numba is found, which a GPU has no use for."""


def test_gpu_check_without_a_gpu_says_that_nothing_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", ["gpu_check.py"])
        patch.setattr(torch.cuda, "is_available", lambda: False)
        gpu_check.main()
    assert end.value.code == 2 and "NOTHING was checked" in capsys.readouterr().err


def test_gpu_check_takes_every_golden_checkpoint(tmp_path: Path) -> None:
    found = dict(gpu_check.golden_targets(tmp_path))
    checkpoints = {str(path) for path in (ROOT / "tests" / "data" / "golden").glob("*/drafter")}
    assert {arm.options["checkpoint"] for arms in found.values() for arm in arms} == checkpoints
    assert all((target / "tokenizer.json").exists() for target in found)


def test_gpu_check_fails_where_telemetry_is_missing_or_silent() -> None:
    run = make_run([make_baseline([plain_trace()])])
    silent = {name: missing(one.unit) for name, one in gpu_window().series.items()}

    def failures(one: Any) -> list[str]:
        return list(gpu_check.telemetry(run, make_arm([plain_trace()], telemetry=one)))

    assert failures(telemetry()) == []
    assert failures(None) == ["guess: no telemetry: not sampled"]
    assert failures(telemetry(gpu_window(**silent))) == ["guess: GPU told nothing"]
    broken = Series("W", "gauge", "error", detail="unknown error")
    assert failures(telemetry(gpu_window(power_w=broken))) == ["guess: GPU: power_w: unknown error"]


@pytest.mark.usefixtures("torch_only")
def test_gpu_check_holds_drafts_from_graphs_against_eager_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, arms = next(gpu_check.golden_targets(tmp_path))
    monkeypatch.setattr(graphs, "recorder_for", lambda device: TapeRecorder())
    monkeypatch.setattr(graph_check, "DRAFTING_TEXT", [3, 1, 4, 1, 5])
    cpu = torch.device("cpu")
    assert list(graph_check.check_drafters(target, arms[:1], cpu)) == []
    assert re.search(r"CUDA graphs: \d+; ", capsys.readouterr().out)
    repeat = graphs.Replays._repeat
    monkeypatch.setattr(
        graphs.Replays,
        "_repeat",
        lambda self, one, graph, start, *inputs: repeat(self, one, graph, 0, *inputs),
    )
    (failure,) = graph_check.check_drafters(target, arms[:1], cpu)
    assert "of 30 drafts from graphs are the eager ones" in failure


@pytest.mark.proof
def test_gpu_check_goes_through_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rehearse"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU was checked" in done.stdout and "process_cpu_pct: ok" in done.stdout


@pytest.mark.parametrize("room", ["measure", "record"])
def test_telemetry_and_all_measuring_need_no_more_than_a_cuda_image_has(room: str) -> None:
    """Imports at the top of a file; whatever else is needed is imported where it is."""
    own = {*sys.stdlib_module_names, "draftboard"}
    for path in (HARNESS / room).rglob("*.py"):
        if path.name in COMPILED:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            packages = {name.split(".")[0] for name in names}
            assert packages <= own | INSTALLED | BROUGHT, f"{path.relative_to(ROOT)}: {packages}"
