"""The history: files that never conflict, read strictly and in order; and steps, not spikes."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.judge.findings import Limits
from draftboard.judge.gate import Trial
from draftboard.judge.history import find_steps
from draftboard.judge.logbook import entry
from draftboard.record.history import FOLDER, Ruled, append, read
from record_factory import ENVIRONMENT
from sides import side

AT = "2026-03-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def ruled() -> Ruled:
    found = entry(Trial(Limits(), one_machine=True).add([side(1)], [side(2)]), "accepted", AT)
    assert found is not None
    return found


def test_a_ruling_is_kept_as_it_was(ruled: Ruled, tmp_path: Path) -> None:
    append(tmp_path, ruled)
    assert read(tmp_path) == [ruled]
    assert (ruled.outcome, len(ruled.arms), ruled.commit) == ("pass", 2, "0" * 40)
    assert {one.target for one in ruled.arms} == {"tiny-target"}


def test_the_history_keeps_what_was_judged_and_why(tmp_path: Path) -> None:
    ruling = Trial(Limits(), one_machine=True).add([side(1)], [side(2, accepted=2)])
    found = entry(ruling, "accepted", AT)
    assert found is not None
    (because,) = (text for text in found.because if "acceptance" in text)
    assert because.startswith("chat guess-k4 acceptance: E[L] 4.000 to 3.000")
    judged = {one.arm: one.change for one in ruling.findings if one.change is not None}
    kept = {one.arm: (one.time_change_lo, one.time_change_hi) for one in found.arms}
    assert kept == {arm: (judged[arm].lo, judged[arm].hi) for arm in kept}
    assert kept["plain"] != (ruling.comparison.arms[0].pace.lo, ruling.comparison.arms[0].pace.hi)


def test_an_entry_of_before_its_target_was_kept_is_read(ruled: Ruled, tmp_path: Path) -> None:
    path = append(tmp_path, ruled)
    data = json.loads(path.read_text())
    for arm in data["arms"]:
        del arm["target"]
    path.write_text(json.dumps(data))
    assert {one.target for (found,) in [read(tmp_path)] for one in found.arms} == {None}


def test_nothing_measured_is_no_entry() -> None:
    assert entry(Trial(Limits(), one_machine=True).add([], []), "accepted", AT) is None


def test_writers_at_once_make_files_of_their_own(ruled: Ruled, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: append(tmp_path, ruled), range(40)))
    assert len(paths) == len(read(tmp_path)) == 40


def test_two_processes_at_once_lose_nothing(ruled: Ruled, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        list(pool.map(append, [tmp_path] * 20, [ruled] * 20))
    assert read(tmp_path) == [ruled] * 20


def test_a_writer_that_is_stopped_leaves_no_half_entry(
    ruled: Ruled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        append(tmp_path, ruled)
    assert read(tmp_path) == []


def test_outside_of_git_the_commit_is_unknown_and_the_entry_is_kept(tmp_path: Path) -> None:
    bare = replace(ENVIRONMENT, git_sha=None, git_dirty=None)
    found = entry(
        Trial(Limits(), one_machine=True).add([side(1)], [side(2, environment=bare)]), "accepted", AT
    )
    assert found is not None
    assert "-unknown-" in append(tmp_path, found).name
    assert [(one.commit, one.dirty) for one in read(tmp_path)] == [(None, None)]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/Los_Angeles", "UTC"])
def test_the_machines_time_zone_does_not_matter(
    zone: str, ruled: Ruled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    path = append(tmp_path, ruled)
    monkeypatch.undo()
    time.tzset()
    assert path.name.startswith("20260301T000000Z-")


def test_order_is_by_the_moment_and_not_by_its_spelling(ruled: Ruled, tmp_path: Path) -> None:
    moments = ["2026-03-01T05:00:00+05:30", "2026-03-01T00:00:00Z", "2026-02-28T20:00:00-05:00"]
    for moment in reversed(moments):
        append(tmp_path, replace(ruled, created_utc=moment))
    assert [one.created_utc for one in read(tmp_path)] == moments


def test_a_time_without_a_zone_is_refused(ruled: Ruled, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="with its zone"):
        append(tmp_path, replace(ruled, created_utc="2026-03-01T00:00:00"))


def test_nan_is_never_written(ruled: Ruled, tmp_path: Path) -> None:
    broken = replace(ruled, arms=(replace(ruled.arms[0], speedup=float("nan")),))
    with pytest.raises(ValueError, match="nan"):
        append(tmp_path, broken)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("text", ["<<<<<<< ours\n{}", '{"schema": 1}', ""])
def test_a_broken_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json"):
        read(tmp_path)


def test_another_format_is_refused(ruled: Ruled, tmp_path: Path) -> None:
    path = append(tmp_path, ruled)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 9}))
    with pytest.raises(UserError, match="format 9 is unknown"):
        read(tmp_path)


def level(value: float, count: int, seed: int = 0, noise: float = 0.005) -> list[float]:
    dice = random.Random(seed)
    return [value * dice.gauss(1, noise) for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    (step,) = find_steps([*level(10, 8), *level(9, 8, 1)])
    assert step.index == 8
    assert (step.before, step.after) == (pytest.approx(10, rel=0.01), pytest.approx(9, rel=0.01))


def test_two_steps() -> None:
    found = find_steps([*level(10, 6), *level(9, 6, 1), *level(11, 6, 2)])
    assert [step.index for step in found] == [6, 12]
    levels = [(step.before, step.after) for step in found]
    assert levels == [pytest.approx((10, 9), rel=0.01), pytest.approx((9, 11), rel=0.01)]


@pytest.mark.parametrize(("first", "middle", "last"), [(10, 6, 10), (10, 3, 10), (20, 4, 30)])
def test_a_level_that_ends_again_is_two_steps(first: int, middle: int, last: int) -> None:
    found = find_steps([*level(1.9, first), *level(1.5, middle, 1), *level(1.9, last, 2)])
    assert [step.index for step in found] == [first, first + middle]


def test_three_small_steps_are_three() -> None:
    values = [value for i in range(4) for value in level(0.96**i, 8, i)]
    assert [step.index for step in find_steps(values)] == [8, 16, 24]


def test_noise_alone_has_no_steps() -> None:
    assert not any(find_steps(level(10, 60, seed, noise=0.02)) for seed in range(20))


@pytest.mark.parametrize("place", range(12))
def test_a_lone_spike_is_no_step(place: int) -> None:
    values = level(10, 12)
    values[place] *= 1.5
    assert find_steps(values) == ()


def test_no_step_in_a_steady_series_nor_between_two_modes() -> None:
    assert find_steps(level(10, 40)) == ()
    dice = random.Random(3)
    assert find_steps([dice.choice([22.5, 25.5]) for _ in range(40)]) == ()


def test_unknown_values_are_passed_over() -> None:
    values: list[float | None] = [*level(10, 5), None, 0.0, *level(8, 5, 1)]
    assert [step.index for step in find_steps(values)] == [7]
    assert find_steps([]) == find_steps([None]) == ()


@pytest.mark.parametrize("values", [[*[10.0] * 20, 15.0, 15.0, 10.0], [15.0, 15.0, *[10.0] * 20]])
def test_two_spikes_at_an_end_are_no_step(values: list[float]) -> None:
    assert find_steps(values) == ()
