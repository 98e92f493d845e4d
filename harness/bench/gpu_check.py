"""Does everything work on this GPU? Minutes, no network, nothing kept. `make gpu-check` runs it.

Every golden checkpoint on its tiny target, then a random-weight Qwen3-style target of about a billion
parameters made on the spot, with itself as draft model: CUDA graphs beside eager forwards and eager drafts,
the loop in bfloat16 on CUDA, the lossless verdicts, every field that NVML tells, and records that are read
back. Speeds of random weights mean nothing.

    python harness/bench/gpu_check.py

Exit code 0: all passed; 1: something failed, and the last lines say what; 2: no GPU, so nothing was checked.
`--rehearse` goes through the same steps on a CPU, with a small target, one checkpoint of each method and one
prompt: it proves the script, not a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graph_check
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftboard.errors import UserError
from draftboard.judge.summary import Row, rows
from draftboard.measure import doctor, doctor_machine, loading, runner
from draftboard.measure.events import Event, Note
from draftboard.measure.plan import Plan
from draftboard.record.records import Arm, RunRecord, Sampling
from draftboard.record.store import Store, load
from draftboard.record.suites import ArmSpec

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
METHODS = ("eagle3", "dflash", "dspark", "mtp")
"""Drafter modules; a golden checkpoint's folder is named after its own."""

LARGE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
SMALL = {**LARGE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
PROMPTS = ("count: 1 2 3 1 2 3 1 2 3", "abc abc abc abc", "the end of the beginning of the end", "x y x y x")


def main() -> None:
    parser = argparse.ArgumentParser(description="check draftboard on this machine's GPU")
    parser.add_argument("--rehearse", action="store_true", help="the same steps on a CPU, small")
    rehearse = parser.parse_args().rehearse
    if not rehearse and not torch.cuda.is_available():
        print("gpu-check: torch sees no GPU here, so NOTHING was checked", file=sys.stderr)
        raise SystemExit(2)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        failures = list(check(Path(folder), rehearse))
    for failure in failures:
        print(f"FAILED: {failure}")
    what = "rehearsed on a CPU: no GPU was checked" if rehearse else "checked on a GPU"
    print(f"gpu-check: {what}, {time.monotonic() - began:.0f} s, {len(failures)} failures")
    raise SystemExit(1 if failures else 0)


def check(folder: Path, rehearse: bool) -> Iterator[str]:
    """Everything in turn; yields what failed."""
    device = "cpu" if rehearse else "cuda"
    seconds, tokens = (0.5, 8) if rehearse else (15.0, 128)
    tell_machine(device)
    write_task(folder)
    for target, arms in golden_targets(folder):
        arms = tuple({arm.drafter: arm for arm in arms}.values()) if rehearse else arms
        yield from graph_check.check_drafters(target, arms, loading.resolve_device(device))
        yield from measure(
            plan(folder, target, arms, device, telemetry_s=0.0, tokens=min(tokens, 32)), folder
        )
    large = make_target(folder / "large", SMALL if rehearse else LARGE, device)
    yield from graph_check.check(large, loading.resolve_device(device), repeats=1 if rehearse else 20)
    arms = (ArmSpec("ngram", 8), ArmSpec("draft_model", 4, {"model": str(large)}))
    yield from measure(plan(folder, large, arms, device, telemetry_s=seconds, tokens=tokens), folder)


def tell_machine(device: str) -> None:
    """The doctor's findings on the machine."""
    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    for section in doctor_machine.sections(doctor.Subject("", None, where, torch.bfloat16, 0)):
        for line in section.lines:
            print(f"{section.title}: {line.name}: {line.value}")


def write_task(root: Path) -> None:
    """A task of raw text, so that any tokenizer will do."""
    folder = root / "tasks" / "check"
    folder.mkdir(parents=True)
    prompts = ({"id": f"p{i}", "category": "any", "turns": [text]} for i, text in enumerate(PROMPTS))
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    (folder / "task.toml").write_text(
        'title = "Check"\nversion = 1\nlicence = "CC0-1.0"\norigin = "made for this check"\n'
        'analysis = "nothing"\ntemplate = "raw"\nturns = 1\n'
    )


def golden_targets(folder: Path) -> Iterator[tuple[Path, tuple[ArmSpec, ...]]]:
    """The golden targets with a tokenizer, and an arm for each of their checkpoints."""
    arms: dict[str, list[ArmSpec]] = {}
    for checkpoint in sorted(GOLDEN.glob("*/drafter")):
        target = json.loads((checkpoint.parent / "expected.json").read_text())["target"]
        module = next(method for method in METHODS if method in checkpoint.parent.name)
        arms.setdefault(target, []).append(ArmSpec(module, None, {"checkpoint": str(checkpoint)}))
    for target, specs in arms.items():
        copy = folder / Path(target).name
        shutil.copytree(GOLDEN / target, copy)
        add_tokenizer(copy)
        yield copy, tuple(specs)


def make_target(folder: Path, sizes: dict[str, Any], device: str) -> Path:
    """A Qwen3-style target of random weights with a byte tokenizer."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **sizes), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    add_tokenizer(folder)
    print(f"made a random target of {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    return folder


def add_tokenizer(folder: Path) -> None:
    sys.path.append(str(ROOT / "tests"))
    from tiny_folder import byte_tokenizer

    byte_tokenizer().save_pretrained(folder)


def plan(
    root: Path, target: Path, arms: tuple[ArmSpec, ...], device: str, telemetry_s: float, tokens: int
) -> Plan:
    """One run in bfloat16 with the plain arm before the others."""
    return Plan(
        suite="gpu-check",
        indicative=True,
        target=str(target),
        revision=None,
        dtype="bfloat16",
        device=device,
        plugins="draftboard_drafters",
        baseline="none",
        task="check",
        root=str(root),
        limit=1 if device == "cpu" else None,
        max_new_tokens=tokens,
        repeats=1,
        warmup=1,
        sampling=Sampling(),
        arms=(ArmSpec("none"), *arms),
        telemetry_s=telemetry_s,
        command="make gpu-check",
    )


def measure(one: Plan, folder: Path) -> Iterator[str]:
    """Runs a plan and reads its records back; yields what is wrong with them."""
    print(f"\n{Path(one.target).name}: {len(one.arms)} arms", flush=True)
    try:
        record, arms = load(runner.run_plan(one, Store(folder / "results"), tell).folder)
    except UserError as error:
        yield f"{Path(one.target).name}: {error}"
        return
    said = record.target
    print(f"  {said.forward} forward, CUDA graphs: {said.graphs or said.graphs_missing}")
    if "failed" in (said.graphs_missing or ""):
        yield f"{said.id}: {said.graphs_missing}"
    for arm, row in zip(arms, rows(record, arms), strict=True):
        tell_row(row)
        print(f"    CUDA graphs: {arm.graphs or arm.graphs_missing}")
        if "failed" in (arm.graphs_missing or "") and not row.error:
            yield f"{row.target}, {row.drafter}: {arm.graphs_missing}"
        if row.error or row.lossless == "bug":
            yield f"{row.target}, {row.drafter}: {row.error or row.lossless_reason}"
        if one.telemetry_s:
            yield from telemetry(record, arm)


def tell(event: Event) -> None:
    if isinstance(event, Note):
        print(f"  {event.text}", flush=True)


def tell_row(row: Row) -> None:
    def figure(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.2f}"

    verdict = f"{row.lossless} ({row.lossless_reason})"
    lengths = f"acceptance length {figure(row.acceptance_length)}, {figure(row.tokens_per_s)} tokens/s"
    print(f"  {row.drafter} K={row.k}: {lengths}, lossless: {verdict}")


def telemetry(record: RunRecord, arm: Arm) -> Iterator[str]:
    """Tells every field; one that ended in an error is a failure, and so is a device that told nothing."""
    if arm.telemetry is None:
        yield f"{arm.drafter}: no telemetry: {arm.telemetry_missing}"
        return
    for device in arm.telemetry.window.devices:
        for name, one in device.series.items():
            shown = f"{len(one.values)} values, last {one.values[-1]:g} {one.unit}" if one.values else ""
            print(f"    {device.name}: {name}: {one.status} {shown} {one.detail or ''}".rstrip())
            if one.status == "error":
                yield f"{arm.drafter}: {device.name}: {name}: {one.detail}"
        if all(one.status != "ok" for one in device.series.values()):
            yield f"{arm.drafter}: {device.name} told nothing"
    if record.environment.device_type == "cuda" and len(arm.telemetry.window.devices) < 2:
        yield f"{arm.drafter}: the GPU is not among the sampled devices"


if __name__ == "__main__":
    main()
