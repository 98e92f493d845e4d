"""Comparing two sides: what is paired, what is refused by name, and the words for a difference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from draftboard.judge.compare import ArmChange, Comparison, compare
from draftboard.judge.findings import percent
from draftboard.judge.ratios import SESSION_SD, Change, Sums, mean_change, over_sessions
from draftboard.record.records import Memory, Sampling, TaskRef, Weights
from sides import side, without


def drafting(found: Comparison) -> ArmChange:
    return next(arm for arm in found.arms if arm.candidate.label == "guess-k4")


def test_a_side_against_itself_is_the_same() -> None:
    one = side(1)
    found = drafting(compare([one], [one]))
    assert {found[name].word for name in ("acceptance_length", "speedup", "tokens_per_s")} == {"same"}
    assert {str(found[name].change.log) for name in ("speedup", "tokens_per_s")} == {"0.0"}
    assert found["memory_mb"].word == "unknown" and found["memory_mb"].change.missing


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_truth_and_a_loss_past_the_noise_is_one(seed: int) -> None:
    found = drafting(compare([side(seed, noise=0.02)], [side(seed + 100, noise=0.02, slow_arm=1.08)]))
    change = found["tokens_per_s"].change
    assert change.lo is not None and change.hi is not None
    assert change.lo < -math.log(1.08) < change.hi
    assert change.hi - change.lo < 0.06
    assert found["tokens_per_s"].word == found["speedup"].word == "worse"


@pytest.mark.parametrize(("factor", "word"), [(1 / 3, "better"), (3.0, "worse")])
def test_direction(factor: float, word: str) -> None:
    """Faster is better, whichever way the figure's numbers run."""
    found = drafting(compare([side(1)], [side(2, slow=factor, slow_arm=1)], one_machine=True))
    assert found["tokens_per_s"].word == word
    assert found["speedup"].word == "no difference found"
    change, pace = found["tokens_per_s"].change.log, found.pace.log
    assert change is not None and pace is not None
    assert change == pytest.approx(-pace) == pytest.approx(-math.log(factor), abs=0.02)


def test_fewer_tokens_accepted_is_exact_without_noise() -> None:
    found = drafting(compare([side(1)], [side(2, accepted=2)]))["acceptance_length"]
    assert (found.base, found.candidate, found.word) == (4.0, 3.0, "worse")
    assert found.change.lo == found.change.hi == pytest.approx(math.log(3 / 4))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task": TaskRef("chat", "Chat", 2, "cd" * 32, "Apache-2.0", 8)}, "task hash"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"sampling": Sampling(temperature=0.7)}, "sampling"),
        ({"fingerprint": "e" * 12}, "machine"),
        ({"arm": {"weights": Weights(8, "ab" * 32, "published")}}, "weights"),
        ({"arm": {"options": {"n": 9}}}, "options"),
    ],
)
def test_another_setting_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    found = compare([side(1)], [side(2, **changes)])  # type: ignore[arg-type]
    assert [one.fields for one in found.refused if field in one.fields[0]]
    assert all(arm.candidate.label != "guess-k4" for arm in found.arms)


def test_another_target_is_refused_by_name() -> None:
    run, arms = side(1)
    other = replace(run, target=replace(run.target, id="other"))
    assert {one.fields for one in compare([(run, arms)], [(other, arms)]).refused} == {("target",)}


def test_side_by_side_other_libraries_are_part_of_the_change() -> None:
    found = compare([side(1)], [side(2, fingerprint="e" * 12)], one_machine=True)
    assert len(found.arms) == 2 and not found.refused


def test_arms_of_one_side_are_listed() -> None:
    whole, less = side(1), without(side(1), "arm00001")
    assert [one.label for one in compare([whole], [less]).vanished] == ["guess-k4"]
    assert [one.label for one in compare([less], [whole]).new] == ["guess-k4"]


def test_the_newest_run_counts() -> None:
    old, new = side(1, slow=2.0), side(2, id="run2")
    found = compare([old, new], [new])
    assert [arm.base.run.id for arm in found.arms] == ["run2", "run2"]


def test_empty_sides() -> None:
    found = compare([], [])
    assert (found.arms, found.refused, found.vanished, found.new, found.pace.log) == ((), (), (), (), None)


def test_times_of_zero_are_unknown_and_not_nan() -> None:
    run, arms = side(1)
    still = replace(arms[1], traces=tuple(replace(t, decode_ms=0.0) for t in arms[1].traces))
    found = drafting(compare([(run, arms)], [(run, [arms[0], still])]))
    assert found["tokens_per_s"].word == "unknown"
    assert found["tokens_per_s"].change.missing
    assert found["acceptance_length"].word == "same"


def test_few_prompts_have_no_interval() -> None:
    found = drafting(compare([side(1, prompts=3)], [side(2, prompts=3)]))["tokens_per_s"]
    assert found.change.log is not None and found.change.lo is None
    assert "3 prompts" in (found.change.missing or "") and found.word == "no interval"


def test_twice_the_memory_is_not_called_the_same() -> None:
    one, two = (side(1, arm={"memory": Memory(10**8, peak)}) for peak in (5 * 10**8, 10**9))
    found = drafting(compare([one], [two]))["memory_mb"]
    assert (found.base, found.candidate, found.word) == (500.0, 1000.0, "no interval")


def test_figures_are_of_the_turns_that_both_sides_answered() -> None:
    """Of sixteen prompts the base has eight; the candidate's others would tell of another task."""
    run, (plain, own) = side(2, prompts=16)
    _, (_, better) = side(2, prompts=16, accepted=0)
    known = {f"p{i}" for i in range(8)}
    mixed = tuple(a if a.prompt_id in known else b for a, b in zip(own.traces, better.traces, strict=True))
    found = drafting(compare([side(1)], [(run, [plain, replace(own, traces=mixed)])]))["acceptance_length"]
    assert (found.base, found.candidate, found.word) == (4.0, 4.0, "same")


def test_arms_of_one_name_are_paired_by_what_they_are() -> None:
    """Whatever their order, and when one side lacks one of them."""
    run, (plain, first) = side(1)
    second = replace(first, id="arm00002", options={"n": 9})
    both = replace(run, arms=(plain.id, first.id, second.id)), [plain, first, second]
    less = without(both, first.id)
    found = compare([less], [both])
    assert [arm.candidate.arm.id for arm in found.arms] == [plain.id, second.id]
    assert [one.arm.id for one in found.new] == [first.id] and not found.refused
    assert [one.arm.id for one in compare([both], [less]).vanished] == [first.id]


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(repeats: int) -> None:
    """Noise of 8 % a reply. Drawing repeats as well as prompts would hold the truth too often."""
    rng, trials, prompts = np.random.default_rng(2), 200, 8
    names = tuple(f"p{i}" for i in range(prompts) for _ in range(repeats))
    empty = np.zeros(len(names))
    units = Sums(names, tuple(range(repeats)) * prompts, empty, empty, empty)
    found = [mean_change(units, rng.normal(0, 0.08, len(names))) for _ in range(trials)]
    held = [one.lo is not None and one.hi is not None and one.lo <= 0 <= one.hi for one in found]
    assert 0.91 <= sum(held) / trials <= 0.975


def test_an_interval_is_widened_by_what_sessions_differ_in() -> None:
    """Two sessions ten percent apart, each sure of itself to 2 %: a deviation of 7 % between sessions."""
    whole = Change(0.05, 0.04, 0.06)
    apart = [Change(0.0, -0.0196, 0.0196), Change(0.1, 0.0804, 0.1196)]
    between = math.sqrt((50 - 1) * 0.01**2)
    found = over_sessions(whole, apart, SESSION_SD)
    assert found.hi == pytest.approx(0.05 + math.hypot(0.01, 1.96 * between / math.sqrt(2)))
    assert found.lo == pytest.approx(0.1 - found.hi)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sessions_that_agree_are_still_no_surer_than_sessions_are(count: int) -> None:
    one = Change(0.05, 0.0304, 0.0696)
    found = over_sessions(Change(0.05, 0.05, 0.05), [one] * count, SESSION_SD)
    assert found.hi == pytest.approx(0.05 + 1.96 * SESSION_SD / math.sqrt(count))
    assert over_sessions(Change(None), [one], SESSION_SD) == Change(None)
    assert over_sessions(Change(0.05, 0.04, 0.06), [one] * count, 0.0).hi == pytest.approx(0.06)


def test_a_change_that_rounds_to_none_has_no_minus() -> None:
    assert [percent(log) for log in (-1e-5, 0.0, -0.02)] == ["+0.0%", "+0.0%", "-2.0%"]
