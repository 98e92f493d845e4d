"""By how much one side differs from the other: paired intervals of a log ratio over prompts and repeats.

A unit is one prompt at one repeat, all its turns together, answered by both sides. The interval is a
bootstrap of prompts, each with all its repeats: how much repeats differ is in the prompts' means already, and
to draw them once more would count it twice. Its percentiles are widened for few prompts (expanded
percentiles: Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from draftboard.judge.pairing import Measured
from draftboard.judge.sample import RESAMPLES, SEED
from draftboard.record.records import Arm, Trace

Column = NDArray[np.float64]
Unit = tuple[str, int]
"""Prompt and repeat."""
MIN_PROMPTS = 4
"""With fewer prompts no interval is worth its name."""


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


def take_sums(base: Measured, candidate: Measured) -> tuple[dict[str, Sums], int]:
    """The sums of `base`, `candidate` and their baselines (`base plain`, `candidate plain`) over the turns
    that all four answered, and the number of those turns. A failed arm answered nothing."""
    arms = {
        "base": base.arm,
        "candidate": candidate.arm,
        "base plain": base.baseline,
        "candidate plain": candidate.baseline,
    }
    traces = {name: _answered(arm) for name, arm in arms.items()}
    common = [key for key in traces["base"] if all(key in found for found in traces.values())]
    return {name: _sums(found, common) for name, found in traces.items()}, len(common)


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


def acceptance(found: Mapping[str, Sums]) -> Change:
    """The change of the pooled acceptance length."""
    base, own = found["base"], found["candidate"]

    def change(w: Column) -> Column:
        return _log(w @ own.tokens) - _log(w @ own.rounds) - _log(w @ base.tokens) + _log(w @ base.rounds)

    return _bootstrap(base.prompts, change)


def _answered(arm: Arm) -> dict[tuple[str, int, int], tuple[float, float, float]]:
    traces = () if arm.error else arm.traces
    return {(t.prompt_id, t.repeat, t.turn): (t.emitted, t.decode_ms, _rounds(t)) for t in traces}


def _rounds(trace: Trace) -> float:
    return math.nan if trace.rounds is None else len(trace.rounds)


def _sums(
    traces: Mapping[tuple[str, int, int], tuple[float, float, float]], common: list[tuple[str, int, int]]
) -> Sums:
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
