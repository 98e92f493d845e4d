"""Acceptance length on the benchmark's own replies, replayed offline: for judging, never for training.

The replies are the baseline's in stored results. Nothing is generated and nothing timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftboard.drafter import Drafter, UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard.record.store import load
from draftboard_drafters.training.replay import Replayed, replay
from draftboard_drafters.training.states import Layout, Store, fill, taps_of


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Greedy replies of one task with the target's states, in the order of the store's rows."""

    task: str
    store: Store


def benchmarks(results: Path, target: TargetModel, work: Path) -> list[Benchmark]:
    """Every task with a greedy baseline of this target in the results; states are computed once.

    Raises UserError where there is none.
    """
    layout = Layout(target.id, taps_of(target.num_layers), target.hidden_size)
    found = []
    for task, run, texts in _baselines(results, target.id):
        store = Store(work / "evaluation" / run, layout)
        fill(store, target, texts[len(store.rows) :])
        found.append(Benchmark(task, store))
    if not found:
        raise UserError(f"no greedy results of target {target.id!r} below {results}; run a suite first")
    return found


def _baselines(
    results: Path, target: str
) -> Iterator[tuple[str, str, list[tuple[tuple[int, ...], tuple[int, ...]]]]]:
    for file in sorted(results.glob("*/*/run.json")):
        run, arms = load(file)
        if run.target.id == target and run.sampling == Sampling():
            texts = [
                (t.prompt_ids, t.token_ids) for arm in arms if arm.id == arm.baseline for t in arm.traces
            ]
            yield run.task.name, run.id, texts


def evaluate(drafter: Drafter, benchmark: Benchmark, dtype: torch.dtype) -> list[Replayed]:
    """The rounds of every reply of a task."""
    columns = [benchmark.store.layout.taps.index(tap) for tap in drafter.taps]
    ids, states = benchmark.store.ids(), benchmark.store.states()
    rounds: list[Replayed] = []
    for row in benchmark.store.rows:
        text = ids[row.start : row.start + row.length].tolist()
        seen = states[row.start : row.start + row.length][:, columns].to(dtype)
        rounds += replay(drafter, text[: row.prompt], text[row.prompt :], seen)
    return rounds


def greedy_sampler(device: torch.device) -> Sampler:
    """What a drafter draws with at temperature 0."""
    return Sampler(Sampling(), Randomness(0, device))


def positions(rounds: Sequence[Replayed], k: int) -> tuple[float, ...]:
    """Share of the rounds whose first 1, 2, .. k guesses were all accepted."""
    return tuple(sum(one.accepted >= place for one in rounds) / len(rounds) for place in range(1, k + 1))


def calibration(rounds: Sequence[Replayed], bins: int = 10) -> Mapping[str, float] | None:
    """How far a confidence can be believed: `ece` the mean gap between confidence and outcome over equal
    bins, `auc` the chance that a passing guess was surer than a failing one. Guesses behind a failed one
    were not judged. None without confidence or with outcomes of one kind only."""
    judged = [
        (sure, place < one.accepted)
        for one in rounds
        for place, sure in enumerate(one.confidence or ())
        if place <= one.accepted
    ]
    sure, passed = torch.tensor([s for s, _ in judged]), torch.tensor([p for _, p in judged])
    if not judged or bool(passed.all()) or not bool(passed.any()):
        return None
    return {"ece": _gap(sure, passed, bins), "auc": _order(sure, passed), "guesses": float(len(judged))}


def _gap(sure: Tensor, passed: Tensor, bins: int) -> float:
    at = (sure * bins).long().clamp_max(bins - 1)
    held = [at == index for index in range(bins)]
    gaps = [(sure[h].mean() - passed[h].float().mean()).abs() * h.sum() for h in held if h.any()]
    return float(torch.stack(gaps).sum() / len(sure))


def _order(sure: Tensor, passed: Tensor) -> float:
    good, bad = sure[passed], sure[~passed].sort().values
    below = torch.searchsorted(bad, good, right=False) + torch.searchsorted(bad, good, right=True)
    return float(below.float().mean() / 2 / len(bad))
