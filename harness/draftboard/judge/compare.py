"""Two sides side by side: how each arm's acceptance, speed, memory and energy differ, and in which words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from draftboard.judge import ratios, telemetry
from draftboard.judge.metrics import BY_NAME, measure
from draftboard.judge.pairing import Matches, Measured, Refused, Run, match
from draftboard.judge.ratios import Change, Sums
from draftboard.record.records import Arm

Word = Literal["same", "better", "worse", "no difference found", "no interval", "unknown"]
"""`same`: equal to the last digit. `no difference found`: the interval holds 0. `no interval`: nobody knows
how much of the change is noise."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure on both sides. `change` is the log ratio of candidate over base; `unit` is the figure's."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    base: float | None
    candidate: float | None
    change: Change
    word: Word


@dataclass(frozen=True, slots=True)
class ArmChange:
    """An arm that both sides measured. `turns` were answered by both, `expected` by the base."""

    base: Measured
    candidate: Measured
    differences: tuple[Difference, ...]
    turns: int
    expected: int
    other_replies: int
    """Turns in which the two sides gave different tokens."""
    pace: Change
    """Decode time per emitted token, candidate over base, by the clock: only of runs made side by side does
    it tell of the build and not of the machine's mood."""

    def __getitem__(self, name: str) -> Difference:
        return next(one for one in self.differences if one.name == name)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All arms of two sides. `pace` is the decode time per token over all compared arms together."""

    arms: tuple[ArmChange, ...]
    refused: tuple[Refused, ...]
    vanished: tuple[Measured, ...]
    new: tuple[Measured, ...]
    pace: Change
    one_machine: bool


def compare(base: Iterable[Run], candidate: Iterable[Run], *, one_machine: bool = False) -> Comparison:
    """Compares the newest runs of both sides. Runs are given oldest first; `one_machine` says that both sides
    took turns on one machine, so that their times compare directly."""
    found: Matches = match(base, candidate, one_machine=one_machine)
    common = [ratios.common_turns(*pair) for pair in found.pairs]
    sums = [ratios.take_sums(*pair, turns) for pair, turns in zip(found.pairs, common, strict=True)]
    parts = zip(found.pairs, sums, common, strict=True)
    arms = (_arm(*pair, own, turns) for pair, own, turns in parts)
    pace = _over_arms([before.task for before, _ in found.pairs], sums)
    return Comparison(tuple(arms), found.refused, found.vanished, found.new, pace, one_machine)


def _arm(
    base: Measured, candidate: Measured, sums: Mapping[str, Sums], turns: Collection[ratios.Turn]
) -> ArmChange:
    return ArmChange(
        base=base,
        candidate=candidate,
        differences=tuple(_differences(base, candidate, sums, turns)),
        turns=len(turns),
        expected=len(base.arm.traces),
        other_replies=_other_replies(base, candidate),
        pace=ratios.pace(sums),
    )


def _differences(
    base: Measured, candidate: Measured, sums: Mapping[str, Sums], turns: Collection[ratios.Turn]
) -> Iterable[Difference]:
    """Figures of the turns that both sides answered; where there are none, of each side's own."""
    before, after = (
        measure(_within(one.baseline, turns), _within(one.arm, turns)) for one in (base, candidate)
    )
    pace = ratios.pace(sums)
    changes = {
        "acceptance_length": ratios.acceptance(sums),
        "speedup": ratios.speed(sums),
        "tokens_per_s": inverse(pace),
    }
    for name, change in changes.items():
        metric, values = BY_NAME[name], (before[name].value, after[name].value)
        yield _difference(name, metric.title, metric.unit, True, *values, change)
    for name, (title, unit, read) in _SINGLE.items():
        one, two = read(base), read(candidate)
        yield _difference(name, title, unit, False, one, two, _single(one, two))


def alone(one: Measured) -> tuple[Difference, ...]:
    """The figures of an arm that has nothing to be compared with."""
    nothing = Change(None, missing="nothing to compare it with")
    found, names = measure(one.baseline, one.arm), ("acceptance_length", "speedup", "tokens_per_s")
    figures = [
        _difference(name, BY_NAME[name].title, BY_NAME[name].unit, True, None, found[name].value, nothing)
        for name in names
    ]
    figures += [
        _difference(name, title, unit, False, None, read(one), nothing)
        for name, (title, unit, read) in _SINGLE.items()
    ]
    return tuple(figures)


def _within(arm: Arm, turns: Collection[ratios.Turn]) -> Arm:
    kept = tuple(trace for trace in arm.traces if ratios.turn_of(trace) in turns)
    return replace(arm, traces=kept) if kept else arm


def _difference(
    name: str, title: str, unit: str, up: bool, base: float | None, candidate: float | None, change: Change
) -> Difference:
    return Difference(name, title, unit, up, base, candidate, change, _word(change, up))


def _word(change: Change, higher_is_better: bool) -> Word:
    if change.log is None:
        return "unknown"
    if change.log == 0 and not change.half_width:
        return "same"
    if change.lo is None or change.hi is None:
        return "no interval"
    if change.lo <= 0 <= change.hi:
        return "no difference found"
    return "better" if (change.lo > 0) == higher_is_better else "worse"


def _memory_mb(one: Measured) -> float | None:
    """The most memory within the arm's replies."""
    return None if one.arm.memory is None else one.arm.memory.peak_bytes / 1e6


def _energy(one: Measured) -> float | None:
    sampled = one.arm.telemetry
    return None if sampled is None else telemetry.summarise(sampled, one.run.idle).j_per_token_gross.value


_SINGLE = {
    "memory_mb": ("memory", "MB", _memory_mb),
    "j_per_token": ("energy", "J/token", _energy),
}
"""Figures of which a run holds a single reading: they have no interval."""


def _single(base: float | None, candidate: float | None) -> Change:
    if not base or not candidate or base < 0 or candidate < 0:
        return Change(None, missing="not measured on both sides")
    return Change(math.log(candidate / base), missing="one reading a side: no interval")


def inverse(change: Change) -> Change:
    """The change of the reciprocal; no change stays 0 and does not become -0."""
    if change.log is None:
        return change
    lo, hi = (None if end is None else 0.0 - end for end in (change.hi, change.lo))
    return Change(0.0 - change.log, lo, hi, change.units, change.missing)


def _other_replies(base: Measured, candidate: Measured) -> int:
    own = {ratios.turn_of(trace): trace.token_ids for trace in candidate.arm.traces}
    turns = ((trace, ratios.turn_of(trace)) for trace in base.arm.traces)
    return sum(turn in own and own[turn] != trace.token_ids for trace, turn in turns)


def _over_arms(tasks: Sequence[str], found: Sequence[Mapping[str, Sums]]) -> Change:
    """Each unit's mean over the arms, so that noise which hits all arms of a prompt counts once."""
    logs: dict[tuple[str, int], list[float]] = {}
    for task, sums in zip(tasks, found, strict=True):
        base = sums["base"]
        for prompt, repeat, log in zip(base.prompts, base.repeats, ratios.pace_units(sums), strict=True):
            logs.setdefault((f"{task}/{prompt}", repeat), []).append(float(log))
    means = np.array([np.mean(values) for values in logs.values()])
    empty = np.zeros(len(means))
    names, repeats = tuple(name for name, _ in logs), tuple(repeat for _, repeat in logs)
    return ratios.mean_change(Sums(names, repeats, empty, empty, empty), means)
