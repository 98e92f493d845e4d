"""A figure from commit to commit: its chart, and its steps in the chart and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from draftboard.judge.estimates import Metric
from draftboard.judge.history import Step, find_steps
from draftboard.show import words
from draftboard.show.web.svg import Plot

_NAMED = 6
"""Commits that find room below a chart."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: the beginning of its commit's hash, its day, its figure and the figure's interval."""

    commit: str
    day: str
    value: float | None
    lo: float | None = None
    hi: float | None = None
    look: str = "dot"
    """The class of its mark."""


def commit_name(sha: str | None, dirty: bool | None) -> str:
    """Beginning of a commit's hash; a star for a tree with local changes."""
    return f"{(sha or 'unknown')[:7]}{'*' if dirty else ''}"


def step_words(points: Sequence[Point], metric: Metric) -> list[str]:
    """A line for each change of level."""
    return [
        f"{metric.title}: a step at {points[step.index].commit} ({points[step.index].day}), from "
        f"{words.figure(step.before, metric.unit)} to {words.figure(step.after, metric.unit)}, {_size(step)}"
        for step in _steps(points)
    ]


def draw(points: Sequence[Point], metric: Metric) -> Markup | None:
    """The figures with their intervals as a band and a line at each step; None for fewer than two."""
    known = [(float(i), one, one.value) for i, one in enumerate(points) if one.value is not None]
    if len(known) < 2:
        return None
    spread = [
        (x, value if one.lo is None else one.lo, value if one.hi is None else one.hi)
        for x, one, value in known
    ]
    ends = [1.0, *(end for _, lo, hi in spread for end in (lo, hi))]
    room = 0.05 * (max(ends) - min(ends))
    plot = Plot((-0.4, len(points) - 0.6), (min(ends) - room, max(ends) + room), width=420.0, top=20.0)
    steps = _steps(points)
    every = math.ceil(len(points) / _NAMED)
    told = f", {len(steps)} {'step' if len(steps) == 1 else 'steps'}" if steps else ""
    return plot.draw(
        plot.band(spread),
        plot.line([(x, value) for x, _, value in known], "line"),
        plot.rule(1.0),
        *(plot.mark(step.index - 0.5, _size(step)) for step in steps),
        *(plot.dot(x, value, f"{one.commit}: {value:.3f}", one.look) for x, one, value in known),
        label=f"{metric.title} over {len(known)} runs{told}",
        x_title="commit",
        y_title=metric.title,
        x_ticks=[(float(i), one.commit) for i, one in enumerate(points) if i % every == 0],
    )


def _steps(points: Sequence[Point]) -> tuple[Step, ...]:
    return find_steps([point.value for point in points])


def _size(step: Step) -> str:
    return f"{step.after / step.before - 1:+z.1%}"
