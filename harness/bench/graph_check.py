"""Forwards replayed from CUDA graphs beside eager ones, on a target in a folder: differences and times.

A part of `gpu_check.py`. Without a GPU both are the eager forward, and only the script is tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, Captured, Drafter
from draftboard.measure import rehearsal
from draftboard.measure.arms import bound_options
from draftboard.measure.clock import Clock
from draftboard.measure.loading import load_target
from draftboard.measure.target import TargetModel
from draftboard.record.suites import ArmSpec

TAPS = (0, 2, FINAL_NORM)
ROWS = (1, 2, 5, 9)
CONTEXTS = (5, 250, 1500)
MAX_CONTEXT = 1600
"""Graphs of 256, 512, 1024 and 1600 positions; nine rows after 250 are within the second."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest difference that other kernels may make, relative to the largest value."""

DRAFTING_CONTEXT = 512
DRAFTING_TEXT = [i * i % 50 for i in range(230)]
DRAFTING_ROUNDS = 30
"""From before the end of the graphs of 256 positions to well behind it."""

Run = Callable[[Tensor], tuple[Tensor, Tensor]]


@torch.inference_mode()
def check(folder: Path, device: torch.device, repeats: int) -> Iterator[str]:
    """Tells times by context and number of rows; yields what differs, and why nothing was captured."""
    for dtype, tolerance in TOLERANCE.items():
        target = load_target(str(folder), dtype=dtype, device=device, max_context=MAX_CONTEXT)
        target.begin(TAPS)
        target.prepare(ROWS)
        said = target.reference()
        print(f"\n{dtype}: CUDA graphs: {said.graphs or said.graphs_missing}", flush=True)
        if device.type == "cuda" and said.graphs is None:
            yield f"graphs in {dtype}: {said.graphs_missing}"
        for context in CONTEXTS:
            for rows in ROWS:
                yield from _compare(target, context, rows, repeats, tolerance)


@torch.inference_mode()
def check_drafters(folder: Path, specs: Iterable[ArmSpec], device: torch.device) -> Iterator[str]:
    """Lets each drafter guess along a text with graphs and without, in float32; yields what differs."""
    target = load_target(str(folder), dtype=torch.float32, device=device, max_context=DRAFTING_CONTEXT)
    for spec in specs:
        replayed, eager = (_built(spec, target) for _ in range(2))
        if not isinstance(replayed, Captured):
            continue
        target.begin(replayed.taps)
        replayed.prepare()
        count, missing = replayed.captured()
        found, found_ms = _guesses(replayed, target)
        expected, eager_ms = _guesses(eager, target)
        name = f"{spec.drafter} on {folder.name}"
        print(
            f"  {name}: CUDA graphs: {count or missing}; {found_ms:.3f} ms a draft, eager {eager_ms:.3f} ms"
        )
        if device.type == "cuda" and count is None:
            yield f"{name}: {missing}"
        if found != expected:
            same = sum(one == other for one, other in zip(found, expected, strict=False))
            yield f"{name}: {same} of {len(expected)} drafts from graphs are the eager ones"


def _built(spec: ArmSpec, target: TargetModel) -> Drafter:
    module, options = bound_options(spec, "draftboard_drafters")
    drafter: Drafter = module.build(target, rehearsal.sampler(target), **options)
    return drafter


def _guesses(drafter: Drafter, target: TargetModel) -> tuple[list[list[int]], float]:
    """The guesses of some rounds in which as much is committed as there was guessed, or less; the median of a
    draft's milliseconds."""
    clock, guesses, times = Clock(target.device), [], []
    with rehearsal.Walk(drafter, target, DRAFTING_TEXT) as walk:
        for number in range(DRAFTING_ROUNDS):
            began = clock.now_ms()
            draft = walk.propose()
            times.append(clock.now_ms() - began)
            guesses.append(rehearsal.ids(draft))
            walk.commit([(number * 3 + i) % 50 for i in range(1 + number % (len(draft.tokens) + 1))])
    return guesses, statistics.median(times[1:])


def _compare(target: TargetModel, context: int, rows: int, repeats: int, tolerance: float) -> Iterator[str]:
    replayed, replayed_ms = _timed(target, target.extend, context, rows, repeats)
    eager, eager_ms = _timed(
        target, lambda ids: target.forward.run(ids, TAPS, last_only=False), context, rows, repeats
    )
    worst = max(_difference(one, other) for one, other in zip(replayed, eager, strict=True))
    place = f"{rows} rows after {context}"
    print(f"  {place}: {replayed_ms:.3f} ms, eager {eager_ms:.3f} ms, differing by {worst:.1e}", flush=True)
    if not worst <= tolerance:
        yield f"graphs in {target.dtype}, {place}: differs from the eager forward by {worst:.1e}"


def _timed(
    target: TargetModel, run: Run, context: int, rows: int, repeats: int
) -> tuple[tuple[Tensor, Tensor], float]:
    """What a forward says, and the median of its milliseconds after one that is not counted."""
    clock, times = Clock(target.device), []
    ids = torch.arange(context + rows, device=target.device) % 50
    target.begin(TAPS)
    target.prefill(ids[:context])
    for _ in range(repeats + 1):
        target.truncate(context)
        began = clock.now_ms()
        found = run(ids[context:])
        times.append(clock.now_ms() - began)
    return found, statistics.median(times[1:])


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    apart = (one.float() - other.float()).abs().max() / other.float().abs().max().clamp(min=1e-6)
    return float(apart)
