"""What `train evaluate` prints: the offline replay of every shipped drafter beside what the engine saw."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from draftboard.drafter import Drafter, UserError
from draftboard.measure.loading import load_target, resolve_dtype, target_id
from draftboard.measure.target import TargetModel
from draftboard_drafters.checkpoints.shipped import train_command
from draftboard_drafters.training.evaluate import (
    Benchmark,
    Measured,
    benchmark,
    calibration,
    evaluate,
    greedy_sampler,
    positions,
    runs_of,
)
from draftboard_drafters.training.replay import Replayed, acceptance_length

_NAMED_APART = frozenset({"checkpoint", "model", "revision", "num_speculative_tokens"})
"""Options that say which weights and which K, and are told in other words."""


def report(
    target: str, weights: Path, methods: Sequence[str], results: Path, work: Path, say: Callable[[str], None]
) -> None:
    """A line for each method with a folder in `weights`, each greedy run of the target in `results`, and each
    K and set of options. `work` keeps the target's states. Raises UserError without weights or runs."""
    folders = [weights / name for name in methods if (weights / name / "config.json").exists()]
    if not folders:
        raise UserError(f"no trained weights in {weights}; train some: {train_command('all', target)}")
    device = torch.device("cpu")
    for dtype, runs in runs_of(results, target_id(target)).items():
        model = load_target(target, dtype=resolve_dtype(dtype, device), device=device, max_context=None)
        for run in runs:
            found = benchmark(run, model, work)
            if found is None:
                say(f"left out: {run.name}, a run of another revision of {model.id}")
                continue
            for folder in folders:
                for line in _judged(folder, found, model):
                    say(f"{folder.name:12} {found.task:6} {dtype:8} {line}")


def _judged(folder: Path, found: Benchmark, target: TargetModel) -> Iterator[str]:
    """A line for each arm that the engine ran with these weights, or for the trained K alone."""
    arms: list[Measured | None] = [arm for arm in found.measured if _ran(arm, folder, target)]
    for arm in arms or [None]:
        drafter = _shipped(folder, target, arm)
        rounds = evaluate(drafter, found, target.dtype)
        said = f"K={drafter.num_speculative_tokens}{_options(arm)}"
        yield f"{said} {_figures(rounds, drafter, arm)}" if rounds else f"{said} no reply has a round"


def _ran(arm: Measured, folder: Path, target: TargetModel) -> bool:
    """Whether the engine ran the weights in `folder` as this arm says; not where its options fail."""
    try:
        return arm.drafter == folder.name and _shipped(folder, target, arm).weights.sha256 == arm.weights
    except (UserError, TypeError):
        return False


def _figures(rounds: Sequence[Replayed], drafter: Drafter, arm: Measured | None) -> str:
    length, sure = acceptance_length(rounds), calibration(rounds)
    shares = " ".join(f"{s:.3f}" for s in positions(rounds, drafter.num_speculative_tokens))
    engine = "" if arm is None else f"  engine {arm.length:.3f} ({arm.length / length - 1:+z.1%})"
    certain = f"  ece {sure['ece']:.3f} auc {sure['auc']:.3f}" if sure else ""
    return f"length {length:.3f}  ({shares}){engine}{certain}"


def _options(arm: Measured | None) -> str:
    named = {} if arm is None else {k: v for k, v in arm.options.items() if k not in _NAMED_APART}
    return "".join(f" {name}={value}" for name, value in sorted(named.items()) if value is not None)


def _shipped(folder: Path, target: TargetModel, arm: Measured | None) -> Drafter:
    """The drafter of the weights in `folder`, by the method that it is named after; with the arm's K and
    options, else as trained."""
    module = importlib.import_module(f"draftboard_drafters.{folder.name}")
    where = "model" if folder.name == "draft_model" else "checkpoint"
    options = {} if arm is None else {**arm.options, "num_speculative_tokens": arm.k}
    drafter: Drafter = module.build(
        target, greedy_sampler(target.device), **{**options, where: str(folder), "revision": None}
    )
    return drafter
