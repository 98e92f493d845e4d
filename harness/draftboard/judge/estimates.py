"""An estimate, what a metric is, and the ways to make the one from the other.

Intervals are percentile bootstrap intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
chapter 13). The prompt is the unit that is drawn, with all its turns and repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftboard.judge.sample import MIN_PROMPTS, Column, Need, Sample, Totals
from draftboard.record.records import Trace

Formula = Callable[[Totals], Column]
OverReplies = Callable[[tuple[Trace, ...]], list[float]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval. `missing` says why the figure, or else its interval, is None."""

    value: float | None
    lo: float | None = None
    hi: float | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. `definition` is what a reader sees beside it; `needs` is what it cannot be computed
    without, and `otherwise` the reason when all that is there and yet it is undefined."""

    name: str
    title: str
    unit: str
    higher_is_better: bool | None
    definition: str
    estimate: Callable[[Sample], Estimate]
    needs: tuple[Need, ...] = ()
    otherwise: str = "nothing was decoded"

    def of(self, sample: Sample) -> Estimate:
        """The figure for one arm."""
        found = self.estimate(sample)
        if found.value is not None:
            return found
        needs: tuple[Need, ...] = ("replies", *self.needs)
        gaps = (sample.gaps[need] for need in needs if need in sample.gaps)
        return Estimate(None, missing=next(gaps, self.otherwise))


def ratio(above: Column, below: Column) -> Column:
    """Elementwise quotient; unknown where `below` is zero or unknown."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def pace(ms: Column, tokens: Column) -> Column:
    """Milliseconds per token; unknown without tokens and without time."""
    return np.where(ms > 0, ratio(ms, tokens), np.nan)


def pooled(formula: Formula) -> Callable[[Sample], Estimate]:
    """The figure of the sums over all prompts, and its interval over resampled prompts."""

    def estimate(sample: Sample) -> Estimate:
        value = float(formula(sample.by_prompt.pooled())[0])
        if not np.isfinite(value):
            return Estimate(None)
        spread = formula(sample.resampled)
        if sample.prompts < MIN_PROMPTS or not np.isfinite(spread).all():
            return Estimate(value, missing="too few prompts for an interval")
        lo, hi = np.percentile(spread, [2.5, 97.5])
        return Estimate(value, float(lo), float(hi))

    return estimate


def mean_over(values: OverReplies) -> Callable[[Sample], Estimate]:
    """The plain mean of one value per reply."""

    def estimate(sample: Sample) -> Estimate:
        found = values(sample.replies)
        return Estimate(float(np.mean(found)) if found else None)

    return estimate


def percentile_over(values: OverReplies, percent: float) -> Callable[[Sample], Estimate]:
    """A percentile, linearly interpolated, of one value per reply."""

    def estimate(sample: Sample) -> Estimate:
        found = values(sample.replies)
        return Estimate(float(np.percentile(found, percent)) if found else None)

    return estimate
