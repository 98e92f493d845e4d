"""Exact, tie, bug or not checked; and the reasons for which a row is not valid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftboard.judge import lossless
from draftboard.judge.lossless import Verdict
from draftboard.judge.summary import rows
from draftboard.record.records import Divergence, Losslessness, Sampling, Validity
from record_factory import (
    BASELINE,
    make_arm,
    make_baseline,
    make_round,
    make_run,
    make_trace,
    parted,
    parted_trace,
    plain_trace,
    random_arms,
)

TIE = Divergence("p3", 0, 0, 17, 5, 9, (9, 5), gap=0.0625, gap_ulp=1.0)


def facts(*divergences: Divergence, **changes) -> Losslessness:
    return replace(Losslessness(10, 10 - len(divergences), divergences), **changes)


def judge_lossless(facts: Losslessness | None, dtype: str = "bfloat16") -> Verdict:
    return lossless.judge_lossless(facts, dtype)


def verdict_of(base, arm, dtype: str = "bfloat16") -> Verdict:
    return lossless.verdict_of(base, arm, dtype)


def test_identical_replies_are_exact():
    found = judge_lossless(facts(float32_compared=2, float32_identical=2))
    assert (found.kind, found.divergences) == ("exact", ())
    assert found.reason == "all 10 replies identical, 2 more in float32"


@pytest.mark.parametrize("gap_ulp", [0.0, 1.0, 4.0])
def test_the_two_likeliest_tokens_within_four_ulp_are_a_tie(gap_ulp):
    found = judge_lossless(facts(replace(TIE, gap_ulp=gap_ulp)))
    assert found.kind == "tie"
    assert found.divergences[0].divergence.gap_ulp == gap_ulp and found.divergences[0].bug is None


BUGS = {
    "a gap above four ulp": facts(replace(TIE, gap_ulp=4.001)),
    "the arm's token is third": facts(replace(TIE, float32_top2=(5, 7))),
    "the baseline's token is third": facts(replace(TIE, float32_top2=(9, 7))),
    "one bug among ties": facts(TIE, replace(TIE, prompt_id="p4", gap_ulp=80.0)),
    "an ended reply": facts(replace(TIE, arm_token=None, gap=None, gap_ulp=None)),
    "an unknown gap": facts(replace(TIE, gap=None, gap_ulp=None)),
    "a difference in float32": facts(TIE, float32_compared=2, float32_identical=1),
    "differences that are not listed": facts(TIE, identical=7),
    "identical but for float32": facts(float32_compared=2, float32_identical=0),
}


@pytest.mark.parametrize("case", BUGS)
def test_anything_else_is_a_bug(case):
    found = judge_lossless(BUGS[case])
    assert found.kind == "bug" and found.reason and "\n" not in found.reason
    assert len(found.divergences) == len(BUGS[case].divergences)


@pytest.mark.parametrize("gap_ulp", [0.0, 1.0, 4.0])
def test_float32_excuses_no_difference_and_lists_it(gap_ulp):
    found = judge_lossless(facts(replace(TIE, gap_ulp=gap_ulp)), "float32")
    assert (found.kind, found.reason) == (
        "bug",
        f"p3 turn 0 token 17: 9 for 5, {gap_ulp:g} ulp apart in float32",
    )
    assert [one.divergence.gap_ulp for one in found.divergences] == [gap_ulp]
    assert judge_lossless(facts(), "float32").kind == "exact"


def test_a_tie_in_a_float32_run_fails_the_row():
    base, arm = random_arms(1)
    tied = parted(arm, float32_compared=2, float32_identical=2)
    row = row_of(tied, base, dtype="float32")
    assert (row.lossless, row.valid) == ("bug", False)
    assert row_of(tied, base, dtype="bfloat16").valid


def test_a_bug_names_its_place_and_tokens():
    reason = judge_lossless(facts(replace(TIE, gap_ulp=80.0))).reason
    assert reason == "p3 turn 0 token 17: 9 for 5, 80 ulp apart"


def test_nothing_compared_is_not_a_pass():
    sampled = facts(not_checked="tokens were sampled at temperature 0.7")
    assert judge_lossless(sampled).kind == "not checked"
    assert judge_lossless(sampled).reason == "tokens were sampled at temperature 0.7"
    assert judge_lossless(Losslessness(0, 0, ())).kind == "not checked"
    assert judge_lossless(None).kind == "not checked"


def changed_reply(arm, place: int = 3):
    """The arm as a hand might change it: another token in a reply, the recorded comparison left alone."""
    traces = list(arm.traces)
    traces[place] = parted_trace(traces[place])
    return replace(arm, traces=tuple(traces))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_difference_that_no_record_tells_of_is_a_bug(dtype):
    base, arm = random_arms(1)
    found = verdict_of(base, changed_reply(arm), dtype)
    assert (found.kind, found.reason) == (
        "bug",
        "p2 turn 0 token 2: 9 for 102, which no recorded comparison tells",
    )
    assert verdict_of(base, arm, dtype).kind == "exact"


def test_a_tie_that_is_told_excuses_no_other_difference():
    base, arm = random_arms(1)
    tied = parted(arm)
    assert verdict_of(base, tied).kind == "tie"
    assert verdict_of(base, changed_reply(tied, 0)).kind == "bug"
    assert verdict_of(changed_reply(base, 6), tied).kind == "bug"


@pytest.mark.parametrize("counts", [(99, 99), (26, 26), (1, 1)])
def test_counts_that_the_replies_deny_prove_nothing(counts):
    base, arm = random_arms(1)
    told = replace(arm, losslessness=Losslessness(*counts, ()))
    found = verdict_of(base, told)
    assert (found.kind, found.reason) == (
        "not checked",
        f"the record contradicts itself: it tells of {counts[0]} compared replies, {counts[0]} of them"
        " identical, and holds 27 and 27",
    )
    assert not row_of(told, base).valid


def test_a_failed_arm_and_the_baseline_are_not_checked():
    base, arm = random_arms(1)
    assert verdict_of(base, base).kind == "not checked"
    failed = verdict_of(base, replace(arm, error="out of memory", losslessness=None))
    assert (failed.kind, failed.reason) == ("not checked", "the arm failed: out of memory")
    assert verdict_of(base, replace(arm, error="out of memory")).kind == "not checked"
    wrong = facts(replace(TIE, gap_ulp=80.0))
    assert verdict_of(base, replace(arm, error="out of memory", losslessness=wrong)).kind == "bug"


# Validity


def row_of(arm, base, **run_changes):
    run = make_run([base, arm], **run_changes)
    return next(row for row in rows(run, [base, arm]) if row.arm == arm.id)


def test_a_sound_arm_is_valid():
    base, arm = random_arms(1)
    row = row_of(arm, base)
    assert row.valid and row.reasons == () and row.lossless == "exact"
    assert row_of(base, base).valid


def changed(trace, **columns):
    return replace(trace, rounds=replace(trace.rounds, **columns))


def shifted(trace):
    return tuple(token + 1 for token in trace.token_ids)


def unsound_arms():
    base, arm = random_arms(1)
    first, *rest = arm.traces
    rounds = first.rounds
    silent = [make_trace(f"p{i}", [make_round(0, proposed=0)] * 3) for i in range(20)]
    quiet_base = make_baseline([plain_trace(f"p{i}", 4) for i in range(20)])
    bumped = (rounds.emitted[0] + 1, *rounds.emitted[1:])
    return {
        "failed: out of memory": (base, replace(arm, error="out of memory")),
        "its baseline failed: out of memory": (replace(base, error="out of memory"), arm),
        "not lossless: p3 turn 0": (
            base,
            parted(arm, gap_ulp=80.0),
        ),
        "not compared with the baseline's output": (base, replace(arm, losslessness=None)),
        "nothing was proposed in any of 60 rounds": (quiet_base, make_arm(silent)),
        "its baseline emitted 2 tokens in a round": (
            replace(base, traces=(changed(base.traces[0], emitted=(2,) * len(base.traces[0].rounds)),)),
            arm,
        ),
        "only 26 of the baseline's 27 replies": (base, replace(arm, traces=tuple(rest))),
        "rounds emitted": (base, replace(arm, traces=(changed(first, emitted=bumped), *rest))),
        "do not nest": (
            base,
            replace(arm, traces=(changed(first, hits=(99, *rounds.hits[1:])), *rest)),
        ),
        "its accepted guesses are not the reply's tokens": (
            base,
            replace(arm, traces=(replace(arm.traces[0], token_ids=shifted(arm.traces[0])), *rest)),
        ),
        "hits, 0 accepted": (
            base,
            make_arm([make_trace("p0", [make_round(0, hits=2), make_round(0)])]),
        ),
        "recorded 2 times": (base, replace(arm, traces=(first, *arm.traces))),
        "no token of the target's, though it is not the last": (
            base,
            make_arm([make_trace("p0", [make_round(2, emitted=2), make_round(0)])]),
        ),
        "pieces for": (base, replace(arm, traces=(replace(first, pieces=()), *rest))),
        "its spans take": (
            base,
            replace(arm, traces=(replace(first, decode_ms=1.0), *rest)),
        ),
        "its parts take": (base, replace(arm, traces=(replace(first, wall_ms=1.0), *rest))),
        "gpu was busy elsewhere": (base, replace(arm, validity=Validity(("gpu was busy elsewhere",)))),
    }


@pytest.mark.parametrize("reason", unsound_arms())
def test_each_fault_is_a_reason(reason):
    base, arm = unsound_arms()[reason]
    row = row_of(arm, base)
    assert not row.valid
    assert any(reason in found for found in row.reasons), row.reasons


def test_counters_that_run_past_the_stop_contradict_the_record():
    """Accepted tokens behind a stop are in no reply, so no counter may hold them."""
    past_stop = make_trace("p0", [make_round(3, emitted=3)], stop="stop_token", tokens=2)
    base = make_baseline([plain_trace("p0", 2)])
    assert any("rounds emitted 3 tokens" in r for r in row_of(make_arm([past_stop]), base).reasons)


def test_a_target_that_lost_its_graphs_is_a_reason():
    base, arm = random_arms(1)
    lost = replace(make_run([base, arm]).target, graphs=None, graphs_missing="capture failed: no room")
    (reason,) = row_of(arm, base, target=lost).reasons
    assert reason.endswith("plain decoding too: capture failed: no room")
    assert row_of(arm, base, target=replace(lost, graphs_missing="not on a GPU")).valid


def test_too_long_a_reply_is_a_reason():
    base, arm = random_arms(1)
    run = make_run([base, arm])
    tight = replace(run, generation=replace(run.generation, max_new_tokens=2))
    assert any("expected 1 to 2" in reason for reason in rows(tight, [base, arm])[1].reasons)


def test_a_run_without_all_its_prompts_is_a_reason():
    base, arm = random_arms(1)
    row = row_of(arm, base, prompt_ids=(*make_run([base]).prompt_ids, "never answered"))
    assert any("only 20 of the run's 21 prompts" in reason for reason in row.reasons)


def test_short_runs_are_marked():
    base, arm = random_arms(1, prompts=5)
    assert row_of(arm, base).reasons == ("5 prompts; figures to be quoted need 16",)
    assert row_of(arm, base, indicative=True).reasons[0].startswith("indicative")


def test_an_arm_with_k_zero_need_not_propose():
    silent = [make_trace(f"p{i}", [make_round(0, proposed=0)] * 3) for i in range(20)]
    base = make_baseline([plain_trace(f"p{i}", 4) for i in range(20)])
    assert row_of(make_arm(silent, k=0), base).valid


def test_a_narrow_dtype_needs_a_proof_in_float32():
    base, arm = random_arms(1)
    assert any("float32" in reason for reason in row_of(arm, base, dtype="bfloat16").reasons)
    proved = parted(arm, float32_compared=2, float32_identical=2)
    assert row_of(proved, base, dtype="bfloat16").reasons == ()
    assert row_of(proved, base, dtype="bfloat16").lossless == "tie"


def test_sampled_tokens_need_no_comparison():
    base, arm = random_arms(1)
    sampled = replace(arm, losslessness=facts(not_checked="tokens were sampled"))
    row = row_of(sampled, base, sampling=Sampling(temperature=0.7))
    assert row.valid and row.lossless == "not checked"


def test_a_row_for_every_arm_failed_ones_included():
    base, arm = random_arms(1)
    failed = replace(arm, id="arm00002", traces=(), error="out of memory")
    found = rows(make_run([base, arm, failed]), [base, arm, failed])
    assert [(row.arm, row.error) for row in found] == [
        (BASELINE, None),
        (arm.id, None),
        (failed.id, "out of memory"),
    ]
    assert found[2].speedup is None and found[2].missing["speedup"] == "the arm failed: out of memory"
