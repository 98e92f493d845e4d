"""Steps in a series of figures: where a level changed for good, and not where one run was odd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

MIN_SIDE = 3
"""Runs that a level needs on either side of a step: a lone spike, and two in a row, are not a level."""
MIN_STEP = 0.03
"""Smallest change of level that is a step, as a share."""
NOISES = 3.0
"""A step must exceed the series' noise this many times."""
_SHARE, _OF_NORMAL = 0.75, 1.1503 * math.sqrt(2)
"""The quantile of the changes from run to run that measures noise, and what it is for normal noise of
deviation 1. A few steps or spikes do not reach it; a series that jumps to and fro between two levels does."""


@dataclass(frozen=True, slots=True)
class Step:
    """From the figure at `index` on the level is `after` and no longer `before`: medians of the figures up to
    the steps next to it."""

    index: int
    before: float
    after: float


def find_steps(values: Sequence[float | None]) -> tuple[Step, ...]:
    """The steps of a series in order; unknown and non-positive values are passed over.

    Binary segmentation with medians: the split that leaves the least scatter about its two levels is a step
    when the levels differ by more than `MIN_STEP` and by more than `NOISES` times the noise from run to run,
    and both parts are searched in turn.
    """
    known = [(i, value) for i, value in enumerate(values) if value is not None and value > 0]
    logs = [math.log(value) for _, value in known]
    places = _search(logs, max(math.log1p(MIN_STEP), NOISES * _noise(logs)))
    parts = pairwise([0, *places, len(known)])
    levels = pairwise(median(value for _, value in known[a:b]) for a, b in parts if b > a)
    return tuple(Step(known[at][0], *sides) for at, sides in zip(places, levels, strict=True))


def _search(logs: Sequence[float], least: float, start: int = 0) -> list[int]:
    """Where new levels begin, counted from `start` at the first of `logs`."""
    splits = (at for at in range(MIN_SIDE, len(logs) - MIN_SIDE + 1) if _lasts(logs, at))
    best = min(splits, key=lambda at: _scatter(logs, at), default=None)
    if best is None or abs(median(logs[best:]) - median(logs[:best])) <= least:
        return []
    left, right = logs[:best], logs[best:]
    return [*_search(left, least, start), start + best, *_search(right, least, start + best)]


def _lasts(logs: Sequence[float], at: int) -> bool:
    """Each level has its least number of runs on its own side of the middle: two spikes have not."""
    before, after = median(logs[:at]), median(logs[at:])
    middle, up = (before + after) / 2, after > before
    first = sum((log < middle) == up for log in logs[:at])
    second = sum((log > middle) == up for log in logs[at:])
    return min(first, second) >= MIN_SIDE


def _scatter(logs: Sequence[float], at: int) -> float:
    """Sum of the deviations from the two levels."""
    return sum(abs(log - median(part)) for part in (logs[:at], logs[at:]) for log in part)


def _noise(logs: Sequence[float]) -> float:
    changes = sorted(abs(b - a) for a, b in pairwise(logs))
    return changes[int(_SHARE * (len(changes) - 1))] / _OF_NORMAL if changes else 0.0
