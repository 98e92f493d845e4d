"""What `train evaluate` prints: the offline replay of every shipped drafter beside what the engine saw."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from draftboard.drafter import Drafter, UserError
from draftboard.measure.loading import load_target, resolve_dtype
from draftboard.measure.target import TargetModel
from draftboard_drafters.training.evaluate import (
    Benchmark,
    benchmark,
    calibration,
    evaluate,
    greedy_sampler,
    positions,
    runs_of,
)
from draftboard_drafters.training.parts import parts_of
from draftboard_drafters.training.replay import acceptance_length


def report(
    target: str, folders: Sequence[Path], results: Path, work: Path, say: Callable[[str], None]
) -> None:
    """A line for each folder of weights, named after its method, each greedy run of the target in `results`
    and each K. `work` keeps the target's states. Raises UserError without weights or runs."""
    if not folders:
        raise UserError("no trained weights; train some: draftboard train all")
    device = torch.device("cpu")
    for dtype, runs in runs_of(results, parts_of(target).id).items():
        model = load_target(target, dtype=resolve_dtype(dtype, device), device=device, max_context=None)
        for found in (benchmark(run, model, work) for run in runs):
            for folder in folders:
                for line in _judged(folder, found, model):
                    say(f"{folder.name:12} {found.task:6} {dtype:8} {line}")


def _judged(folder: Path, found: Benchmark, target: TargetModel) -> Iterator[str]:
    """A line for each K that the engine ran, or for the trained K alone."""
    trained = _shipped(folder, target, None)
    arms = {arm.k: arm.length for arm in found.seen(trained, folder.name)}
    for k in arms or [None]:
        drafter = _shipped(folder, target, k)
        rounds = evaluate(drafter, found, target.dtype)
        length, sure = acceptance_length(rounds), calibration(rounds)
        shares = " ".join(f"{s:.3f}" for s in positions(rounds, drafter.num_speculative_tokens))
        engine = f"  engine {arms[k]:.3f} ({arms[k] / length - 1:+.1%})" if k in arms else ""
        certain = f"  ece {sure['ece']:.3f} auc {sure['auc']:.3f}" if sure else ""
        yield f"K={drafter.num_speculative_tokens} length {length:.3f}  ({shares}){engine}{certain}"


def _shipped(folder: Path, target: TargetModel, k: int | None) -> Drafter:
    """The drafter of the weights in `folder`, by the method that it is named after; K as trained if None."""
    module = importlib.import_module(f"draftboard_drafters.{folder.name}")
    where = "model" if folder.name == "draft_model" else "checkpoint"
    asked = {} if k is None else {"num_speculative_tokens": k}
    drafter: Drafter = module.build(target, greedy_sampler(target.device), **{where: str(folder)}, **asked)
    return drafter
