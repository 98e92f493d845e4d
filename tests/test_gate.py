"""The gate's rulings: what fails, what passes, what cannot be told, and their exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.judge.findings import Limits
from draftboard.judge.gate import MAX_SESSIONS, Ruling, Trial
from draftboard.judge.pairing import Run
from draftboard.record.accepted import Floor, Ledger
from draftboard.record.records import Divergence, Losslessness, Sampling, Validity
from record_factory import parted_trace
from sides import side, without
from test_telemetry import gauge, gpu_window, telemetry

LIMITS = Limits()
Sides = tuple[Sequence[Run], Sequence[Run]]


def rule(sessions: Sequence[Sides], limits: Limits = LIMITS, *, one_machine: bool = True) -> Ruling:
    """The ruling after as many sessions as the trial asks for."""
    trial = Trial(limits, one_machine=one_machine)
    for base, candidate in sessions:
        ruling = trial.add(base, candidate)
        if not trial.open(ruling):
            break
    return ruling


def said(ruling: Ruling, check: str, arm: str = "guess-k4") -> str:
    """Outcome and words of a finding."""
    found = next(f for f in ruling.findings if (f.check, f.arm) == (check, arm))
    return f"{found.outcome}: {found.text}"


def floor(length: float, **facts: Any) -> Limits:
    """Limits with one floor of the drafting arm."""
    place = {"target": "tiny-target", "task": "chat", "arm": "guess-k4"}
    return Limits(ledger=Ledger(floors=(Floor(**{**place, **facts}, acceptance_length=length, because="x"),)))


def sessions(*factors: float, noise: float = 0.01) -> list[Sides]:
    return [([side(i, noise=noise)], [side(i + 50, noise=noise, slow=f)]) for i, f in enumerate(factors)]


def test_a_build_against_itself_passes_at_once() -> None:
    ruling = rule(sessions(1.0))
    assert (ruling.outcome, ruling.exit_code, ruling.sessions) == ("pass", 0, 1)


def test_getting_faster_passes() -> None:
    assert rule(sessions(1 / 3)).outcome == "pass"


def test_a_slowdown_fails_only_when_confirmed() -> None:
    confirmed = rule(sessions(1.08, 1.08))
    assert (confirmed.outcome, confirmed.exit_code, confirmed.sessions) == ("regression", 1, 2)
    assert "past 3% in 2 sessions" in said(confirmed, "time")
    passing = rule(sessions(1.08, 1.0, 1.0))
    assert passing.outcome != "regression" and passing.sessions > 1


@pytest.mark.parametrize("factors", [(1.3, 1.0), (1.0, 1.3), (1.0, 1.0, 1.3), (1.3, 1.02, 1.0)])
def test_one_wild_session_cannot_make_an_alarm(factors: tuple[float, ...]) -> None:
    trial = Trial(LIMITS, one_machine=True)
    for base, candidate in sessions(*factors):
        ruling = trial.add(base, candidate)
    assert ruling.outcome != "regression"


def test_a_slowdown_too_noisy_for_one_session_is_heard_in_three() -> None:
    found = sessions(*[1.08] * 3, noise=0.06)
    alone = [Trial(LIMITS, one_machine=True).add(*one) for one in found]
    assert any("cannot tell" in said(ruling, "time", "all arms") for ruling in alone)
    trial = Trial(LIMITS, one_machine=True)
    for one in found:
        ruling = trial.add(*one)
    assert ruling.outcome == "regression"


def test_noise_as_wide_as_the_limit_is_neither_and_names_a_remedy() -> None:
    ruling = rule(sessions(1.0, 1.02, 1.0, noise=0.15))
    assert (ruling.outcome, ruling.exit_code, ruling.sessions) == ("cannot tell", 3, MAX_SESSIONS)
    assert "settle" in said(ruling, "time")


def test_creep_is_measured_from_a_fixed_base() -> None:
    base = [side(0)]
    outcomes = [
        rule([(base, [side(i, slow_arm=1.02**step)]) for i in (60, 61, 62)], one_machine=False).outcome
        for step in range(5)
    ]
    assert outcomes[0] == "pass" and outcomes[-1] == "regression"


@pytest.mark.parametrize(("speed", "outcome"), [(95, "pass"), (90, "regression"), (85, "regression")])
def test_small_losses_one_after_the_other_are_measured_from_the_base(speed: int, outcome: str) -> None:
    """Each is within 8 % of the one before; the accepted base had 100."""
    sides = [([side(0)], [side(i, slow_arm=100 / speed)]) for i in (60, 61, 62)]
    assert rule(sides, Limits(time=0.08), one_machine=False).outcome == outcome


def test_the_plain_clock_of_a_stored_run_can_only_raise_a_doubt() -> None:
    ruling = rule([([side(0)], [side(i, slow=1.2)]) for i in (60, 61, 62)], one_machine=False)
    assert ruling.outcome == "cannot tell"
    assert "--against" in said(ruling, "time", "plain")
    assert said(ruling, "time").startswith("pass")


def test_plain_decoding_that_became_faster_fails_no_drafter() -> None:
    """The drafter's speedup falls and its own clock does not."""
    faster = [([side(0)], [side(i, slow=1 / 1.2, slow_arm=1.2)]) for i in (60, 61, 62)]
    ruling = rule(faster, one_machine=False)
    assert ruling.outcome == "cannot tell"
    text = said(ruling, "time")
    assert "time per token relative to plain decoding" in text and "plain decoding became faster" in text
    assert "relative" not in said(ruling, "time", "plain")


def test_an_arm_that_a_later_session_loses_has_vanished() -> None:
    trial = Trial(LIMITS, one_machine=True)
    trial.add([side(0, noise=0.2)], [side(1, noise=0.2)])
    ruling = trial.add([side(2)], [without(side(3), "arm00001")])
    assert said(ruling, "presence").startswith("regression: vanished") and ruling.exit_code == 1


def test_what_would_settle_a_time_is_true() -> None:
    one = rule(sessions(1.4)[:1])
    assert "2 sessions must say so (--sessions 2 or more)" in said(one, "time")
    wild = Trial(LIMITS, one_machine=True, most=9)
    for slow in (1.05, 1.05, *[0.9] * 6):
        ruling = wild.add([side(1)], [side(2, slow=slow)])
    assert "2 sessions were past it and all together are not" in said(ruling, "time")
    near = rule(sessions(1.03, 1.03, 1.03))
    assert "at the limit" in said(near, "time")


@pytest.mark.parametrize("most", [1, 5])
def test_a_gate_may_ask_for_more_or_fewer_sessions(most: int) -> None:
    trial = Trial(LIMITS, one_machine=True, most=most)
    ruling = trial.over(([side(i, noise=0.3)], [side(i + 50, noise=0.3)]) for i in range(9))
    assert ruling.sessions == most
    with pytest.raises(UserError, match="--sessions must be 1 or more, found 0"):
        Trial(LIMITS, one_machine=True, most=0)


def test_a_drop_of_acceptance_fails_and_every_change_is_told() -> None:
    worse = rule([([side(0)], [side(1, accepted=2)])])
    assert worse.outcome == "regression"
    assert "E[L] 4.000 to 3.000, -25.0%" in said(worse, "acceptance")
    better = rule([([side(0, accepted=2)], [side(1, accepted=3)])])
    assert "pass: E[L] 3.000 to 4.000" in said(better, "acceptance")


def test_the_floor_catches_what_both_sides_lost() -> None:
    limits = floor(3.5)
    ruling = rule([([side(0, accepted=2)], [side(1, accepted=2)])], limits)
    assert ruling.outcome == "regression"
    assert said(ruling, "floor") == "regression: E[L] 3.000, floor 3.500"


def test_not_lossless_outranks_everything() -> None:
    where = Divergence("p0", 0, 0, 3, 5, 6, (5, 7), 0.5, 900.0)
    broken = {"losslessness": Losslessness(16, 15, (where,))}
    ruling = rule([([side(0)], [side(1, accepted=2, arm=broken)])])
    assert (ruling.outcome, ruling.exit_code) == ("not lossless", 4)


def test_losslessness_that_was_not_checked_is_no_pass() -> None:
    ruling = rule([([side(0)], [side(1, arm={"losslessness": None})])])
    assert ruling.outcome == "cannot tell"


def test_a_vanished_or_failing_arm_fails_and_a_new_one_is_listed() -> None:
    whole, less = side(0), without(side(1), "arm00001")
    assert rule([([whole], [less])]).outcome == "regression"
    assert rule([([whole], [side(1, arm={"error": "boom"})])]).outcome == "regression"
    new = rule([([less], [whole])])
    assert new.outcome == "pass" and "nothing to compare it with" in said(new, "presence")


def test_a_failing_base_is_no_verdict() -> None:
    ruling = rule([([side(0, arm={"error": "boom"})], [side(1)])])
    assert ruling.outcome == "cannot tell" and "the base failed: boom" in said(ruling, "presence")


def test_missing_replies_are_no_verdict() -> None:
    run, arms = side(1)
    partial = replace(arms[1], traces=arms[1].traces[:-2])
    assert rule([([side(0)], [(run, [arms[0], partial])])]).outcome == "cannot tell"


@pytest.mark.parametrize("sides", [([], []), ([], [side(1)])])
def test_nothing_to_compare_has_its_own_code(sides: Sides) -> None:
    assert rule([sides]).exit_code == 5


def test_a_candidate_without_any_run_fails() -> None:
    assert rule([([side(0)], [])]).outcome == "regression"


def test_a_refused_pair_is_no_verdict() -> None:
    ruling = rule([([side(0)], [side(1, arm={"options": {"n": 9}})])])
    assert ruling.outcome == "cannot tell" and "options" in said(ruling, "same setting")


def test_sampled_acceptance_is_judged_by_its_interval() -> None:
    warm = {"sampling": Sampling(temperature=1.0)}
    ruling = rule([([side(0, **warm)], [side(1, accepted=2, **warm)])])  # type: ignore[arg-type]
    assert said(ruling, "acceptance").startswith("regression")


def test_sessions_of_one_side_are_pooled_as_repeats() -> None:
    trial = Trial(LIMITS, one_machine=True)
    for base, candidate in sessions(1.0, 1.0):
        ruling = trial.add(base, candidate)
    assert {arm.turns for arm in ruling.comparison.arms} == {32}
    assert ruling.comparison.pace.units == 32


BROKEN = {"losslessness": Losslessness(16, 15, (Divergence("p0", 0, 0, 3, 5, 6, (5, 7), 0.5, 900.0),))}


def silent(run: Run) -> Run:
    """The run as an engine would tell it that hides its rounds."""
    record, (plain, own) = run
    traces = tuple(replace(trace, rounds=None, rounds_missing="hidden") for trace in own.traces)
    return record, [plain, replace(own, traces=traces)]


def twins(seed: int, slow: float = 1.0) -> Run:
    """A run with two arms of one name that differ in an option; the first may be slow."""
    run, (plain, first) = side(seed, slow_arm=slow)
    second = side(seed + 1, arm={"id": "arm00002", "options": {"n": 9}})[1][1]
    return replace(run, arms=(*run.arms, second.id)), [plain, first, second]


@pytest.mark.parametrize(("arm", "code"), [(BROKEN, 4), ({"error": "boom"}, 1)])
def test_an_arm_that_is_compared_with_nothing_is_judged_all_the_same(
    arm: dict[str, object], code: int
) -> None:
    other = {**arm, "options": {"n": 9}}
    assert rule([([without(side(0), "arm00001")], [side(1, arm=arm)])]).exit_code == code
    assert rule([([side(0)], [side(1, arm=other)])]).exit_code == code


def test_a_floor_is_one_targets_and_an_unknown_length_does_not_keep_it() -> None:
    other, own = floor(9.0, target="other"), floor(3.5)
    assert rule([([side(0)], [side(1)])], other).outcome == "pass"
    hidden = rule([([silent(side(0))], [silent(side(1))])], own)
    assert said(hidden, "floor").startswith("cannot tell: E[L] is not known")


SAMPLED = {
    "sampling": Sampling(temperature=1.0),
    "arm": {"losslessness": Losslessness(0, 0, (), not_checked="tokens were sampled")},
}


@pytest.mark.parametrize("changes", [SAMPLED, {"arm": {"error": "boom"}}])
def test_what_was_not_looked_at_is_no_pass(changes: dict[str, Any]) -> None:
    ruling = rule([([side(0, **changes)], [side(1, **changes)])])
    assert not [f for f in ruling.findings if f.check == "losslessness"]


@pytest.mark.parametrize(
    ("base", "own", "check", "remedy"),
    [
        (side(0, arm={"error": "boom"}), side(1), "presence", "by a base in which it works"),
        (side(0, arm={"error": "x"}), side(1, arm={"error": "y"}), "presence", "a base in which it works"),
        (side(0), side(1, prompts=7), "presence", "measure the rest"),
        (side(0), side(1, arm={"options": {"n": 9}}), "same setting", "measure both alike"),
        (side(0), side(1, arm={"losslessness": None}), "losslessness", "whose replies are compared"),
        (side(0, prompts=3), side(1, prompts=3), "time", "more prompts"),
        (side(0), silent(side(1)), "acceptance", "an engine that tells rounds"),
        (side(0, noise=0.2), side(1, noise=0.2), "time", "settle"),
    ],
)
def test_cannot_tell_says_what_would_settle_it(base: Run, own: Run, check: str, remedy: str) -> None:
    ruling = Trial(LIMITS, one_machine=True).add([base], [own])
    assert ruling.exit_code == 3
    words = said(ruling, check)
    assert words.startswith("cannot tell") and remedy in words


@pytest.mark.parametrize("value", [-0.01, 1.0, float("nan"), float("inf"), 3.0])
def test_a_limit_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(UserError, match="is a share"):
        Limits(time=value)
    with pytest.raises(UserError, match="acceptance limit is a share"):
        Limits(acceptance=value)


def test_an_arm_does_not_hide_a_namesake() -> None:
    ruling = rule([([twins(0)], [twins(70 + i, slow=1.3)]) for i in range(2)])
    assert ruling.outcome == "regression"


def test_a_bug_of_a_later_session_is_heard() -> None:
    """The first session is undecided and exact; the second settles the time and has the bug."""
    found = [([side(0, noise=0.15)], [side(50, noise=0.15)]), ([side(1)], [side(51, arm=BROKEN)])]
    assert [Trial(LIMITS, one_machine=True).add(*one).outcome for one in found[:1]] == ["cannot tell"]
    ruling = rule(found)
    assert (ruling.sessions, ruling.exit_code) == (2, 4)


def test_other_tokens_of_plain_decoding_are_no_pass() -> None:
    run, arms = side(1)
    other = [replace(arm, traces=(parted_trace(arm.traces[0]), *arm.traces[1:])) for arm in arms]
    ruling = rule([([side(0)], [(run, other)])])
    assert ruling.exit_code == 3 and "other tokens than before in 1 of 16" in said(
        ruling, "losslessness", "plain"
    )


def test_a_record_that_contradicts_itself_is_no_pass() -> None:
    """Lost rounds would pass for twice the acceptance."""
    run, (plain, own) = side(1)
    traces = tuple(replace(one, rounds=_half(one.rounds)) for one in own.traces)
    ruling = rule([([side(0)], [(run, [plain, replace(own, traces=traces)])])])
    assert ruling.exit_code == 3 and "contradicts itself" in said(ruling, "validity")


def _half(rounds: Any) -> Any:
    """Every column's first half."""
    columns = {f.name: getattr(rounds, f.name) for f in fields(rounds)}
    return replace(rounds, **{name: column[: len(column) // 2] for name, column in columns.items() if column})


@pytest.mark.parametrize("seed", [0, 1])
def test_a_disturbed_run_is_no_verdict_unless_both_sides_took_turns(seed: int) -> None:
    disturbed = {"validity": Validity(("other processes used 30 % of the cores",))}
    sides = [side(0), side(1)]
    sides[seed] = side(seed, arm=disturbed)
    stored = rule([([sides[0]], [sides[1]])], one_machine=False)
    assert stored.exit_code == 3 and "other processes" in said(stored, "validity")
    assert rule([([sides[0]], [sides[1]])]).outcome == "pass"


@pytest.mark.parametrize(
    ("facts", "run"),
    [
        ({"task_sha256": "another"}, {}),
        ({"max_new_tokens": 7}, {}),
        ({}, {"sampling": Sampling(temperature=1.0), "arm": {"losslessness": None}}),
    ],
)
def test_a_floor_holds_for_its_own_setting(facts: dict[str, Any], run: dict[str, Any]) -> None:
    ruling = rule([([side(0, **run)], [side(1, **run)])], floor(9.0, **facts))
    assert not [one for one in ruling.findings if one.check == "floor"]
    assert rule([([side(0)], [side(1)])], floor(9.0)).outcome == "regression"


def test_a_floor_of_an_arm_that_is_not_measured_is_told() -> None:
    ruling = rule([([side(0)], [side(1)])], floor(2.0, arm="gues-k4"))
    assert said(ruling, "floor", "gues-k4").startswith(
        "cannot tell: floor 2.000: no such arm was measured; did you mean 'guess-k4'?; measure it"
    )
    assert ruling.outcome == "cannot tell"
    assert rule([([side(0)], [side(1)])], floor(2.0, arm="gues-k4", task="code")).outcome == "pass"


@pytest.mark.parametrize("broken", [0, 1])
def test_a_failed_arm_has_no_verdict_on_its_time(broken: int) -> None:
    sides = [side(0), side(1)]
    sides[broken] = side(broken, arm={"error": "boom"})
    ruling = rule([([sides[0]], [sides[1]])])
    assert not [f for f in ruling.findings if (f.check, f.arm) == ("time", "guess-k4")]
    assert ruling.outcome == ("cannot tell", "regression")[broken]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_reply_that_was_changed_by_hand_is_heard(seed: int) -> None:
    """The recorded comparison still says that all are identical."""
    sides = [side(0), side(1)]
    run, (plain, arm) = sides[seed]
    sides[seed] = run, [plain, replace(arm, traces=(parted_trace(arm.traces[0]), *arm.traces[1:]))]
    ruling = rule([([sides[0]], [sides[1]])], one_machine=False)
    assert ruling.outcome == ("cannot tell", "not lossless")[seed]


def test_arms_of_one_name_have_names_of_their_own_in_findings() -> None:
    run, (plain, first) = side(1)
    second = replace(first, id="arm00002", options={"n": 9})
    both = replace(run, arms=(plain.id, first.id, second.id)), [plain, first, second]
    ruling = rule([([both], [both])])
    assert {f.arm for f in ruling.findings if f.check == "acceptance"} == {
        "guess-k4 (arm00001)",
        "guess-k4 (arm00002)",
    }


def test_sides_with_other_numbers_of_repeats_agree_on_every_session() -> None:
    trial = Trial(LIMITS, one_machine=True)
    for i in range(3):
        ruling = trial.add([side(i, repeats=1)], [side(i + 50, repeats=3)])
    assert {arm.turns for arm in ruling.comparison.arms} == {24}


def test_a_limit_is_told_with_its_digits() -> None:
    ruling = rule([([side(0)], [side(1)])], Limits(time=0.035))
    assert "within 3.5%" in said(ruling, "time", "all arms")


def test_what_another_session_cannot_settle_asks_for_none() -> None:
    trial = Trial(LIMITS, one_machine=True)
    assert not trial.open(trial.add([side(0, prompts=3)], [side(1, prompts=3)]))


def test_two_sessions_past_the_limit_do_not_pass_by_a_wild_third() -> None:
    found = sessions(1.035, 1.032, 0.92)
    trial = Trial(LIMITS, one_machine=True)
    for one in found:
        ruling = trial.add(*one)
    assert said(ruling, "time", "all arms").startswith("cannot tell")


def test_sessions_that_disagree_among_themselves_are_neither() -> None:
    """A process that is fast or slow as a whole: each session is sure of its figure, 13 % apart."""
    found = sessions(1.133, 1.0, 1.133)
    trial = Trial(LIMITS, one_machine=True)
    for one in found:
        ruling = trial.add(*one)
    assert ruling.comparison.pace.lo is not None and ruling.comparison.pace.lo > 0.03
    assert said(ruling, "time", "all arms").startswith("cannot tell")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loss_of_a_gpu_that_was_held_back_has_its_cause_beside_it(seed: int) -> None:
    held = telemetry(gpu_window(clock_reasons=gauge(*[float(0x04)] * 20, unit="bits")))
    sides = [side(0), side(1)]
    sides[seed] = side(seed, arm={"telemetry": held})
    ruling = rule([([sides[0]], [sides[1]])], one_machine=False)
    assert ruling.exit_code == 3 and "held back in 100% of the samples: power cap" in said(ruling, "validity")
