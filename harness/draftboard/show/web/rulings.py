"""How an arm's figures went from ruling to ruling of the gate: the history's files as trends.

What a gate measures beside a commit is stored nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftboard.judge.findings import percent
from draftboard.record.history import Ruled, Said
from draftboard.record.ids import digest
from draftboard.record.store import parse_utc
from draftboard.show.web.page import PLOTTED
from draftboard.show.web.series import Point, commit_name
from draftboard.show.web.trends import Trend, cell, charts, steps

_Place = tuple[str, str, str]
_FULL_HASH = 40


def make_rulings(found: Sequence[Ruled]) -> tuple[Trend, ...]:
    """A trend for each arm with two rulings or more of one suite on one machine, in the order of `found`,
    which is oldest first. Plain decoding, which is 1 by definition, is left out."""
    groups: dict[_Place, list[tuple[Ruled, Said]]] = {}
    for ruled in found:
        for said in ruled.arms:
            groups.setdefault((ruled.fingerprint, ruled.suite, said.arm_id), []).append((ruled, said))
    several = ((place, group) for place, group in groups.items() if len(group) > 1)
    return tuple(_trend(place, group) for place, group in several if not _is_plain(group))


def _is_plain(group: Sequence[tuple[Ruled, Said]]) -> bool:
    return all((said.speedup, said.acceptance_length) == (1.0, 1.0) for _, said in group)


def _trend(place: _Place, group: Sequence[tuple[Ruled, Said]]) -> Trend:
    ruled, said = group[-1]
    figures = {name: [_point(*one, name) for one in group] for name in PLOTTED}
    target = "" if said.target is None else f"{said.target} on "
    return Trend(
        id=f"ruling-{digest(list(place))}",
        title=f"{said.arm}, {said.task}",
        setting=f"{target}{ruled.testbed}, suite {ruled.suite}, machine {ruled.fingerprint[:8]}",
        charts=charts(figures),
        steps=steps(figures),
        lines=tuple(_line(*one) for one in group),
        pages=(None,) * len(group),
    )


def _point(ruled: Ruled, said: Said, name: str) -> Point:
    value: float | None = getattr(said, name)
    day = parse_utc(ruled.created_utc, "history").date().isoformat()
    look = "dot" if ruled.outcome == "pass" else "dot hollow"
    return Point(commit_name(ruled.commit, ruled.dirty), day, value, look=look)


def _line(ruled: Ruled, said: Said) -> tuple[str, ...]:
    points = {name: _point(ruled, said, name) for name in PLOTTED}
    first = points[PLOTTED[0]]
    base = ruled.against[:7] if len(ruled.against) == _FULL_HASH else ruled.against
    figures = (cell(point, name) for name, point in points.items())
    why = "; ".join(text.removeprefix(f"{said.task} {said.arm} ") for text in ruled.because)
    time = "" if said.time_change is None else f", {percent(said.time_change)} time"
    said_of_it = f"{ruled.outcome}{time}, base {base}{f': {why}' if why else ''}"
    return first.day, first.commit, *figures, said_of_it
