"""How an arm's figures went from commit to commit, on one machine in one setting."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from draftboard.judge.metrics import BY_NAME
from draftboard.record.records import RunRecord
from draftboard.show import settings, words
from draftboard.show.collect import Entry, RunRows
from draftboard.show.web.page import PLOTTED
from draftboard.show.web.series import Point, commit_name, draw, step_words


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of an arm."""

    run: RunRecord
    entry: Entry
    accepted: bool

    def point(self, name: str) -> Point:
        """One of its figures; hollow when the run is not valid, marked when it is an accepted one."""
        found, row = self.run.environment, self.entry.row
        value, lo, hi = (getattr(row, f"{name}{end}") for end in ("", "_lo", "_hi"))
        look = "dot marked" if self.accepted else "dot" if row.valid else "dot hollow"
        return Point(commit_name(found.git_sha, found.git_dirty), words.day(row), value, lo, hi, look)


@dataclass(frozen=True, slots=True)
class Trend:
    """An arm that was measured more than once: a chart for each of `PLOTTED`, its steps in words, and a line
    for each run, with the page of those that have one."""

    id: str
    title: str
    setting: str
    charts: tuple[Markup, ...]
    steps: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    pages: tuple[str | None, ...]


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
    figures = {name: [one.point(name) for one in group] for name in PLOTTED}
    return Trend(
        id=f"{settings.key(row)}-{row.arm}",
        title=f"{words.arm_name(row)}, {row.task_title}{stamp}",
        setting=settings.heading(row),
        charts=charts(figures),
        steps=steps(figures),
        lines=tuple(_line(one) for one in group),
        pages=tuple(f"{one.entry.page}.html" for one in group),
    )


def charts(figures: Mapping[str, Sequence[Point]]) -> tuple[Markup, ...]:
    """The charts of figures that are known at least twice, by the name of their metric."""
    drawn = (draw(points, BY_NAME[name]) for name, points in figures.items())
    return tuple(chart for chart in drawn if chart is not None)


def steps(figures: Mapping[str, Sequence[Point]]) -> tuple[str, ...]:
    """The steps of all figures, in words."""
    return tuple(line for name, points in figures.items() for line in step_words(points, BY_NAME[name]))


def cell(point: Point, name: str) -> str:
    """A figure and its interval."""
    return f"{words.figure(point.value, BY_NAME[name].unit)} {words.interval(point.lo, point.hi)}".strip()


def _line(one: Measured) -> tuple[str, ...]:
    row, points = one.entry.row, [one.point(name) for name in PLOTTED]
    cells = (cell(point, name) for point, name in zip(points, PLOTTED, strict=True))
    state = "accepted" if one.accepted else "" if row.valid else row.reasons[0]
    return points[0].day, points[0].commit, *cells, state
