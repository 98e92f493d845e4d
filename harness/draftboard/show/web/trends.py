"""How an arm's figures went from commit to commit, on one machine in one setting."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from draftboard.judge.metrics import BY_NAME
from draftboard.judge.summary import Row
from draftboard.record.records import RunRecord
from draftboard.show import settings, words
from draftboard.show.collect import Entry, RunRows
from draftboard.show.web.page import PLOTTED
from draftboard.show.web.svg import Plot


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of an arm."""

    run: RunRecord
    entry: Entry
    accepted: bool

    @property
    def commit(self) -> str:
        """Beginning of the commit's hash; a star for a tree with local changes."""
        found = self.run.environment
        return f"{(found.git_sha or 'unknown')[:7]}{'*' if found.git_dirty else ''}"


@dataclass(frozen=True, slots=True)
class Trend:
    """An arm that was measured more than once: a chart for each of `PLOTTED`, and a line for each run."""

    id: str
    title: str
    setting: str
    charts: tuple[Markup, ...]
    lines: tuple[tuple[str, ...], ...]
    pages: tuple[str, ...]


def make_trends(found: Sequence[RunRows], accepted: Collection[tuple[str, str]]) -> tuple[Trend, ...]:
    """A trend for each drafting arm with two runs or more in one setting, runs oldest first. `accepted` has
    run and arm of those that changes are compared with."""
    groups: dict[Hashable, list[Measured]] = {}
    for one in found:
        for entry in (entry for entry in one.entries if not entry.row.baseline):
            key = settings.setting(entry.row), entry.row.indicative, entry.row.arm
            groups.setdefault(key, []).append(
                Measured(one.run, entry, (one.run.id, entry.row.arm) in accepted)
            )
    return tuple(_trend(group) for group in groups.values() if len(group) > 1)


def _trend(group: Sequence[Measured]) -> Trend:
    row = group[-1].entry.row
    stamp = ", indicative" if row.indicative else ""
    charts = (_chart(group, name) for name in PLOTTED)
    return Trend(
        id=f"{settings.key(row)}-{row.arm}",
        title=f"{words.arm_name(row)}, {row.task_title}{stamp}",
        setting=settings.heading(row),
        charts=tuple(chart for chart in charts if chart is not None),
        lines=tuple(_line(one) for one in group),
        pages=tuple(f"{one.entry.page}.html" for one in group),
    )


def _line(one: Measured) -> tuple[str, ...]:
    row = one.entry.row
    figures = (words.figure(getattr(row, name), BY_NAME[name].unit) for name in PLOTTED)
    ranges = (words.interval(getattr(row, f"{name}_lo"), getattr(row, f"{name}_hi")) for name in PLOTTED)
    cells = (f"{value} {spread}" for value, spread in zip(figures, ranges, strict=True))
    state = "accepted" if one.accepted else "" if row.valid else row.reasons[0]
    return words.day(row), one.commit, *cells, state


def _chart(group: Sequence[Measured], name: str) -> Markup | None:
    """The figure with its interval as a band; hollow points are not valid, ringed ones accepted."""
    known = [
        (i, one, value) for i, one in enumerate(group) if (value := _value(one.entry.row, name)) is not None
    ]
    if len(known) < 2:
        return None
    spread = [(float(i), *_spread(one.entry.row, name, value)) for i, one, value in known]
    ends = [end for _, lo, hi in spread for end in (lo, hi)]
    lo, hi = min(*ends, 1.0), max(*ends, 1.0)
    plot = Plot((-0.4, len(group) - 0.6), (lo - 0.05 * (hi - lo), hi + 0.05 * (hi - lo)), width=420.0)
    dots = (plot.dot(i, value, f"{one.commit}: {value:.3f}", _class(one)) for i, one, value in known)
    step = max(1, len(group) // 6)
    named = [(float(i), one.commit) for i, one in enumerate(group) if i % step == 0]
    return plot.draw(
        plot.band(spread),
        plot.line([(i, value) for i, _, value in known], "line"),
        plot.rule(1.0),
        *dots,
        label=f"{BY_NAME[name].title} over {len(known)} runs",
        x_title="commit",
        y_title=BY_NAME[name].title,
        x_ticks=named,
    )


def _class(one: Measured) -> str:
    return "dot marked" if one.accepted else "dot" if one.entry.row.valid else "dot hollow"


def _value(row: Row, name: str) -> float | None:
    value: float | None = getattr(row, name)
    return value


def _spread(row: Row, name: str, value: float) -> tuple[float, float]:
    lo, hi = getattr(row, f"{name}_lo"), getattr(row, f"{name}_hi")
    return (value, value) if lo is None or hi is None else (lo, hi)
