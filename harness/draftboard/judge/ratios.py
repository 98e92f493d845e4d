"""By how much one side differs from the other: paired intervals of a log ratio over prompts and repeats.

A unit is one prompt at one repeat, all its turns together, answered by both sides. The interval is a
bootstrap of prompts, each with all its repeats: how much repeats differ is in the prompts' means already, and
to draw them once more would count it twice. Its percentiles are widened for few prompts (expanded
percentiles: Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from draftboard.judge.pairing import Measured
from draftboard.judge.sample import MIN_PROMPTS, RESAMPLES, SEED
from draftboard.record.records import Arm, Trace

Column = NDArray[np.float64]
Unit = tuple[str, int]
"""Prompt and repeat."""
Turn = tuple[str, int, int]
"""Prompt, repeat and turn."""
TWO_SIDED = 1.96
"""Standard errors from the middle of a 95 % interval to its ends."""
SESSION_SD = 0.013
"""By how much a session's figure is off as a whole, of two builds that are alike: a process keeps its place
in memory, and its luck, to its end. Found by harness/bench/gate_trials.py on two virtual cores. Figures
relative to plain decoding in the same process do not have it."""


@dataclass(frozen=True, slots=True)
class Change:
    """ln(candidate / base) and its 95 % interval; `missing` says why the figure or its interval is None."""

    log: float | None
    lo: float | None = None
    hi: float | None = None
    units: int = 0
    missing: str | None = None

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        return None if self.lo is None or self.hi is None else (self.hi - self.lo) / 2


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals of the units that both sides answered, each column float64 [units]."""

    prompts: tuple[str, ...]
    repeats: tuple[int, ...]
    tokens: Column
    ms: Column
    rounds: Column


def turn_of(trace: Trace) -> Turn:
    """Where a trace belongs."""
    return trace.prompt_id, trace.repeat, trace.turn


def common_turns(base: Measured, candidate: Measured) -> dict[Turn, None]:
    """The turns that both arms and both baselines answered, in the base's order. A failed arm answered
    nothing."""
    answered = [set(_answered(arm)) for arm in _all_four(base, candidate).values()]
    return dict.fromkeys(turn for turn in _answered(base.arm) if all(turn in found for found in answered))


def take_sums(base: Measured, candidate: Measured, turns: Iterable[Turn]) -> dict[str, Sums]:
    """The sums of `base`, `candidate` and their baselines (`base plain`, `candidate plain`) over `turns`."""
    common = list(turns)
    return {name: _sums(_answered(arm), common) for name, arm in _all_four(base, candidate).items()}


def _all_four(base: Measured, candidate: Measured) -> dict[str, Arm]:
    return {
        "base": base.arm,
        "candidate": candidate.arm,
        "base plain": base.baseline,
        "candidate plain": candidate.baseline,
    }


def pace(found: Mapping[str, Sums]) -> Change:
    """The change of decode time per emitted token."""
    return mean_change(found["base"], pace_units(found))


def pace_units(found: Mapping[str, Sums]) -> Column:
    """ln of the change of decode time per token, per unit."""
    return _log_pace(found["candidate"]) - _log_pace(found["base"])


def speed(found: Mapping[str, Sums]) -> Change:
    """The change of the decode speedup: of each side's pace relative to plain decoding in its own run."""
    plain = _log_pace(found["candidate plain"]) - _log_pace(found["base plain"])
    return mean_change(found["base"], plain - pace_units(found))


def mean_change(units: Sums, logs: Column) -> Change:
    """The mean of a log ratio per unit; units without one (no time, no token) are left out."""
    kept = np.isfinite(logs)
    prompts = tuple(p for p, keep in zip(units.prompts, kept, strict=True) if keep)
    values = logs[kept]
    return _bootstrap(prompts, lambda w: (w @ values) / w.sum(axis=-1))


def over_sessions(whole: Change, parts: Sequence[Change], least: float) -> Change:
    """A change over several sessions, its interval widened by what sessions differ in beyond their replies:
    random effects (DerSimonian and Laird, Controlled Clinical Trials 7, 1986), of at least the standard
    deviation `least`."""
    if whole.log is None or whole.lo is None or whole.hi is None:
        return whole
    added = (TWO_SIDED * max(least, _between(parts))) ** 2 / max(len(parts), 1)
    lo, hi = (math.sqrt((end - whole.log) ** 2 + added) for end in (whole.lo, whole.hi))
    return replace(whole, lo=whole.log - lo, hi=whole.log + hi)


def _between(parts: Sequence[Change]) -> float:
    """The standard deviation of the sessions' figures that their own intervals do not explain; 0 where they
    explain all of it, or where nobody knows."""
    known = [(one.log, one.half_width) for one in parts if one.log is not None and one.half_width]
    if len(known) < 2:
        return 0.0
    logs, errors = np.array([log for log, _ in known]), np.array([half for _, half in known]) / TWO_SIDED
    weights = errors**-2
    scatter = float(weights @ (logs - np.average(logs, weights=weights)) ** 2)
    scale = float(weights.sum() - (weights @ weights) / weights.sum())
    return math.sqrt(max(0.0, scatter - (len(known) - 1)) / scale)


def acceptance(found: Mapping[str, Sums]) -> Change:
    """The change of the pooled acceptance length."""
    base, own = found["base"], found["candidate"]

    def change(w: Column) -> Column:
        return _log(w @ own.tokens) - _log(w @ own.rounds) - _log(w @ base.tokens) + _log(w @ base.rounds)

    return _bootstrap(base.prompts, change)


def _answered(arm: Arm) -> dict[Turn, tuple[float, float, float]]:
    traces = () if arm.error else arm.traces
    return {turn_of(t): (t.emitted, t.decode_ms, _rounds(t)) for t in traces}


def _rounds(trace: Trace) -> float:
    return math.nan if trace.rounds is None else len(trace.rounds)


def _sums(traces: Mapping[Turn, tuple[float, float, float]], common: list[Turn]) -> Sums:
    totals: dict[Unit, Column] = {}
    for key in common:
        unit = key[:2]
        totals[unit] = totals.get(unit, np.zeros(3)) + np.array(traces[key])
    columns = np.array(list(totals.values())).reshape(-1, 3).T
    return Sums(tuple(p for p, _ in totals), tuple(r for _, r in totals), *columns)


def _log(values: Column) -> Column:
    return np.log(np.where(values > 0, values, np.nan))


def _log_pace(sums: Sums) -> Column:
    return _log(sums.ms) - _log(sums.tokens)


def _bootstrap(prompts: tuple[str, ...], statistic: Callable[[Column], Column]) -> Change:
    """The statistic of weights [..., units], once with weights of 1 and then of resamples."""
    if not prompts:
        return Change(None, missing="no prompt was answered by both sides")
    value = float(statistic(np.ones(len(prompts))))
    if not math.isfinite(value):
        return Change(None, units=len(prompts), missing="times or counts are missing or zero")
    count = len(set(prompts))
    if count < MIN_PROMPTS:
        return Change(value, units=len(prompts), missing=f"{count} prompts; an interval needs {MIN_PROMPTS}")
    spread = statistic(_weights(prompts))
    lo, hi = np.nanpercentile(spread, _percentiles(count))
    return Change(value, float(lo), float(hi), len(prompts))


def _percentiles(count: int) -> list[float]:
    tail = 100 * float(ndtr(-math.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.975)))
    return [tail, 100 - tail]


@lru_cache
def _weights(prompts: tuple[str, ...]) -> Column:
    """How often each unit occurs in each resample, [resamples, units]."""
    place = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
    drawn = np.random.default_rng(SEED).multinomial(
        len(place), np.full(len(place), 1 / len(place)), RESAMPLES
    )
    return drawn[:, [place[prompt] for prompt in prompts]].astype(np.float64)
