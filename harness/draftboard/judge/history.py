"""Steps in a series of figures: where a level changed for three runs or more, not where one was odd."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

MIN_SIDE = 3
"""Runs that a level needs on either side of a step: a lone spike, and two in a row, are not a level."""
MIN_STEP = 0.03
"""Smallest change of level that is a step, as a share."""
NOISES = 4.0
"""A step must exceed the series' noise this many times: of normal noise the medians of three runs and of
three others differ by more than that in 2 of 100,000 places."""
_WIDER = 1.5
"""Growth of the windows."""
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


class _Split(NamedTuple):
    """A possible step; of two the lesser is the better."""

    width: int
    scatter: float
    at: int
    start: int
    end: int


def find_steps(values: Sequence[float | None]) -> tuple[Step, ...]:
    """The steps of a series in order; unknown and non-positive values are passed over.

    Windows of growing width around every place are asked whether the medians of their halves differ by more
    than `MIN_STEP` and by more than `NOISES` times the noise from run to run. The narrowest window that says
    so has the step, the one with the least scatter among those; wider ones that hold it say no more
    (narrowest over threshold: Baranowski, Chen and Fryzlewicz, JRSS B 81, 2019). So a level that ends again
    is seen, however long the levels next to it are. Then each step goes to the place that leaves the least
    scatter about the levels on its sides.
    """
    known = [(i, value) for i, value in enumerate(values) if value is not None and value > 0]
    logs = [math.log(value) for _, value in known]
    least = max(math.log1p(MIN_STEP), NOISES * _noise(logs))
    places = _in_place(logs, _without_small(logs, _narrowest(logs, least), least))
    places = _without_small(logs, places, least)
    levels = pairwise(map(math.exp, _levels(logs, places)))
    return tuple(Step(known[at][0], *sides) for at, sides in zip(places, levels, strict=True))


def _narrowest(logs: Sequence[float], least: float) -> list[int]:
    """Where new levels begin."""
    found: list[int] = []
    for split in sorted(_splits(logs, least)):
        if not any(split.start < at < split.end or abs(split.at - at) < MIN_SIDE for at in found):
            found.append(split.at)
    return sorted(found)


def _splits(logs: Sequence[float], least: float) -> Iterator[_Split]:
    """Every window whose halves are levels that differ by more than `least`."""
    width = MIN_SIDE
    while width < len(logs):
        for at in range(MIN_SIDE, len(logs) - MIN_SIDE + 1):
            start, end = max(0, at - width), min(len(logs), at + width)
            before, after = logs[start:at], logs[at:end]
            levels = median(before), median(after)
            if abs(levels[1] - levels[0]) > least and _last(before, after, *levels):
                yield _Split(width, _scatter(before, levels[0]) + _scatter(after, levels[1]), at, start, end)
        width = math.ceil(width * _WIDER)


def _last(before: Sequence[float], after: Sequence[float], low: float, high: float) -> bool:
    """Each level has its least number of runs on its own side of the middle: two spikes have not."""
    middle, up = (low + high) / 2, high > low
    first = sum((log < middle) == up for log in before)
    second = sum((log > middle) == up for log in after)
    return min(first, second) >= MIN_SIDE


def _scatter(part: Sequence[float], level: float) -> float:
    return sum(abs(log - level) for log in part)


def _levels(logs: Sequence[float], places: Sequence[int]) -> list[float]:
    return [median(logs[a:b]) for a, b in pairwise([0, *places, len(logs)]) if b > a]


def _without_small(logs: Sequence[float], places: list[int], least: float) -> list[int]:
    """The places without those that part two levels of nearly one height."""
    sizes = [abs(b - a) for a, b in pairwise(_levels(logs, places))]
    if not sizes or min(sizes) > least:
        return places
    least_at = sizes.index(min(sizes))
    return _without_small(logs, places[:least_at] + places[least_at + 1 :], least)


def _in_place(logs: Sequence[float], places: list[int]) -> list[int]:
    """The places moved to where the levels between their neighbours scatter least."""
    moved = [0, *places, len(logs)]
    for i in range(1, len(moved) - 1):
        start, end = moved[i - 1], moved[i + 1]
        fits = range(start + MIN_SIDE, end - MIN_SIDE + 1)
        moved[i] = min((_cost(logs, start, at, end), at) for at in fits)[1]
    return moved[1:-1]


def _cost(logs: Sequence[float], start: int, at: int, end: int) -> float:
    return sum(_scatter(part, median(part)) for part in (logs[start:at], logs[at:end]))


def _noise(logs: Sequence[float]) -> float:
    changes = sorted(abs(b - a) for a, b in pairwise(logs))
    return changes[int(_SHARE * (len(changes) - 1))] / _OF_NORMAL if changes else 0.0
