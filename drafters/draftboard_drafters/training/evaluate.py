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
from draftboard.record.records import Arm, Json, Sampling
from draftboard.record.store import load, read_run
from draftboard_drafters.training.replay import Replayed, replay
from draftboard_drafters.training.states import Store, fill, layout_of


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engine saw of an arm in the run that a benchmark's replies come from."""

    drafter: str
    k: int | None
    options: Mapping[str, Json]
    weights: str | None
    """Their sha256."""
    length: float
    """Acceptance length: emitted tokens over rounds."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Greedy replies of one task with the target's states, in the order of the store's rows."""

    task: str
    store: Store
    measured: tuple[Measured, ...]


def runs_of(results: Path, target: str) -> dict[str, list[Path]]:
    """Folders of the greedy runs of the target with this id, by their dtype. Raises UserError where there is
    none."""
    found: dict[str, list[Path]] = {}
    for file in sorted(results.glob("*/*/run.json")):
        run = read_run(file)
        if run.target.id == target and run.sampling.temperature == 0:
            found.setdefault(run.dtype, []).append(file.parent)
    if not found:
        raise UserError(f"no greedy results of target {target!r} below {results}; run a suite first")
    return found


def benchmark(folder: Path, target: TargetModel, work: Path) -> Benchmark | None:
    """A run's baseline replies, each once, and the target's states on them. States that `work` lacks are
    computed in the target's dtype; they are kept in bfloat16.

    None for a run of another revision of the target. Raises UserError for tokens that the target lacks.
    """
    run, arms = load(folder)
    if run.target.revision != target.revision:
        return None
    layout = layout_of(target.id, target.num_layers, target.hidden_size)
    store = Store(work / "evaluation" / run.dtype / run.id, layout)
    baseline = next(arm for arm in arms if arm.id == arm.baseline)
    texts = [(t.prompt_ids, t.token_ids) for t in baseline.traces if t.repeat == 0 and t.token_ids]
    odd = [id for text in texts for ids in text for id in ids if not 0 <= id < target.vocab_size]
    if odd:
        raise UserError(
            f"{folder}: token {odd[0]} is none of the target's {target.vocab_size}; remove the run"
        )
    fill(store, target, texts[len(store.rows) :])
    return Benchmark(run.task.name, store, tuple(_measured(arms)))


def _measured(arms: Sequence[Arm]) -> Iterator[Measured]:
    for arm in arms:
        rounds = [trace.rounds for trace in arm.traces if trace.rounds is not None]
        if arm.error is None and (count := sum(map(len, rounds))):
            length = sum(sum(one.emitted) for one in rounds) / count
            yield Measured(arm.drafter, arm.k, arm.options, arm.weights.sha256, length)


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
