"""Steps on the page of trends: of stored runs and of the gate's rulings, and none for a lone spike."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.record.history import FOLDER, read
from draftboard.record.store import Store
from draftboard.show import site
from draftboard.show.collect import read_all
from draftboard.show.web.rulings import make_rulings
from draftboard.show.web.trends import make_trends
from site_factory import HOSTILE, ROOT, Elements, write_rulings, write_series

STEP = (1.0, 1.01, 0.99, 1.0, 1.25, 1.26, 1.24, 1.25)
SPIKE = (1.0, 1.01, 0.99, 1.0, 1.5, 1.0, 1.01, 0.99)


def test_a_step_of_stored_runs_stands_in_the_chart_and_in_words(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_series(store, STEP)
    (trend,) = make_trends(read_all(store), ())
    speedups = [row.speedup for found in read_all(store) for row in found.rows if row.speedup != 1]
    before, after = sorted(speedups, reverse=True)[1:3], sorted(speedups)[1:3]
    (line,) = trend.steps
    told = f"from {sum(before) / 2:.2f}x to {sum(after) / 2:.2f}x, -20.0%"
    assert line == f"speedup: a step at 4444444 (2026-05-01), {told}"
    speedup, length = map(str, trend.charts)
    assert speedup.count('class="step"') == 1 and ">-20.0%<" in speedup and "8 runs, 1 step" in speedup
    assert "step" not in length


def test_the_line_stands_between_the_last_run_of_before_and_the_first_of_after(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_series(store, STEP)
    chart = str(make_trends(read_all(store), ())[0].charts[0])
    dots = [float(x) for x in re.findall(r'cx="([\d.]+)"', chart)]
    (at,) = re.findall(r'class="step" x1="([\d.]+)"', chart)
    assert dots[3] < float(at) < dots[4]


def test_a_lone_spike_is_no_step(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_series(store, SPIKE)
    (trend,) = make_trends(read_all(store), ())
    assert trend.steps == () and "step" not in "".join(map(str, trend.charts))


def test_rulings_of_the_gate_are_trends_with_their_steps(tmp_path: Path) -> None:
    write_rulings(tmp_path, (4.0, 4.0, 4.0, 3.6, 3.6, 3.6))
    (trend,) = make_rulings(read(tmp_path))
    assert (trend.title, trend.pages) == ("guess-k4, gate", (None,) * 6)
    assert trend.setting == "tiny-target on tiny-cpu, suite gate, machine ffffffff"
    assert trend.steps == (
        "speedup: a step at 3333333 (2026-03-04), from 2.00x to 1.80x, -10.0%",
        "E[L]: a step at 3333333 (2026-03-04), from 4.00 to 3.60, -10.0%",
    )
    assert trend.lines[0] == ("2026-03-01", "0000000", "2.00x", "4.00", "pass, +0.0% time, base accepted")
    assert len(trend.charts) == 2 and all(str(chart).count("<circle") == 6 for chart in trend.charts)


@pytest.mark.parametrize("runs", [2, 6, 7, 10, 11, 13])
def test_commits_below_a_chart_leave_room_for_one_another(tmp_path: Path, runs: int) -> None:
    write_rulings(tmp_path, (4.0,) * runs)
    chart = str(make_rulings(read(tmp_path))[0].charts[0])
    at = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*>[0-9a-f]{7}<', chart)]
    assert 2 <= len(at) <= 6
    assert min(b - a for a, b in pairwise(at)) > 50, "seven characters of 11 pixels' type"


def test_other_suites_machines_and_arms_are_other_trends_and_one_ruling_is_none(tmp_path: Path) -> None:
    write_rulings(tmp_path, (4.0, 4.0))
    write_rulings(tmp_path, (3.0,), suite="standard")
    write_rulings(tmp_path, (2.0, 2.0), fingerprint="e" * 12)
    trends = make_rulings(read(tmp_path))
    assert sorted(len(trend.lines) for trend in trends) == [2, 2]
    assert len({trend.id for trend in trends}) == 2


def test_unknown_figures_and_commits_stay_unknown(tmp_path: Path) -> None:
    why = ("gate guess-k4 time: +2.0%: another session settles it", "gate guess-k40 floor: not this arm")
    write_rulings(
        tmp_path, (4.0, 4.0), commit=None, dirty=None, outcome="cannot tell", against="ab" * 20, because=why
    )
    found = [
        replace(ruled, arms=tuple(replace(one, speedup=None, target=None) for one in ruled.arms))
        for ruled in read(tmp_path)
    ]
    trend = next(one for one in make_rulings(found) if one.title == "guess-k4, gate")
    told = (
        "cannot tell, +0.0% time, base abababa: time: +2.0%: another session settles it;"
        " gate guess-k40 floor: not this arm"
    )
    assert trend.lines[0] == ("2026-03-01", "unknown", "\u2013", "4.00", told)
    assert len(trend.charts) == 1 and str(trend.charts[0]).count("dot hollow") == 2
    assert trend.setting.startswith("tiny-cpu, suite")


def test_the_page_has_both_and_follows_the_history(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "results"), tmp_path / "out"
    write_series(store, STEP[2:6])
    site.build(store, out, ROOT)
    assert "What the gate said" not in (out / "trends.html").read_text()
    write_rulings(store.root, (4.0, 4.0, 4.0, 3.6, 3.6, 3.6))
    with pytest.raises(UserError, match=r"trends\.html, line .* build the page again"):
        site.verify(store, out, ROOT)
    site.build(store, out, ROOT)
    assert site.verify(store, out, ROOT)
    text = (out / "trends.html").read_text()
    assert "What the gate said" in text and text.count('class="step"') == 2
    assert "E[L]: a step at 3333333 (2026-03-04), from 4.00 to 3.60, -10.0%" in text


def test_a_hostile_history_is_text(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    write_rulings(store.root, (4.0, 4.0), suite=HOSTILE, testbed=HOSTILE, against=HOSTILE)
    site.build(store, tmp_path / "out", ROOT)
    text = (tmp_path / "out" / "trends.html").read_text()
    assert "<b>" not in text and "alert(1)</script>" not in text and html.escape("<b>") in text
    assert all("onmouseover" not in given for _, given in Elements(text).all)


def test_a_history_file_that_is_broken_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    write_rulings(store.root, (4.0, 4.0))
    next((store.root / FOLDER).iterdir()).write_text("<<<<<<< ours\n")
    with pytest.raises(UserError, match=r"history/.*\.json: not valid JSON"):
        site.build(store, tmp_path / "out", ROOT)
