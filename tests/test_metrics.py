"""Every figure against hand counts and against plain loops that share no code with it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from draftboard.judge.metrics import BY_NAME, METRICS, measure
from draftboard.judge.positions import by_position
from draftboard.judge.sample import take_sample
from draftboard.judge.terms import fit, predict
from draftboard.record.records import Arm, Round, Trace
from record_factory import make_arm, make_baseline, make_round, make_trace, plain_trace, random_arms


def paired(rounds_by_prompt: dict[str, list[Round]], **more) -> tuple[Arm, Arm]:
    """An arm of these rounds and a baseline with the same tokens at 10 ms each."""
    traces = [make_trace(prompt, rounds, **more) for prompt, rounds in rounds_by_prompt.items()]
    return make_baseline([plain_trace(t.prompt_id, len(t.token_ids)) for t in traces]), make_arm(traces)


def value(arms: tuple[Arm, Arm], name: str) -> float | None:
    return measure(*arms)[name].value


# Counting


def test_a_drafter_that_never_hits_scores_exactly_one():
    assert value(paired({"p": [make_round(0)] * 7}), "acceptance_length") == 1.0


def test_full_acceptance_counts_the_targets_own_token():
    arms = paired({"p": [make_round(4)] * 3})
    assert value(arms, "acceptance_length") == 5.0
    assert value(arms, "acceptance_length_without_bonus") == 4.0
    assert value(arms, "acceptance_rate") == 1.0


def test_pooled_and_mean_of_means_differ_and_are_named_apart():
    arms = paired({"short": [make_round(4)] * 2, "long": [make_round(0)] * 100})
    assert value(arms, "acceptance_length") == pytest.approx(110 / 102)
    assert value(arms, "acceptance_length_mean_of_means") == 3.0


def test_every_round_of_every_turn_counts():
    first, last = [make_round(3)] * 4, [make_round(0)]
    arm = make_arm([make_trace("p", first, turn=0), make_trace("p", last, turn=1)])
    base = make_baseline([plain_trace("p", 17, turn=0), plain_trace("p", 2, turn=1)])
    assert value((base, arm), "acceptance_length") == 17 / 5


def test_acceptance_rate_divides_by_what_was_verified():
    rounds = [make_round(1, proposed=2), make_round(0, proposed=0), make_round(2, proposed=4)]
    assert value(paired({"p": rounds}), "acceptance_rate") == 0.5
    assert value(paired({"p": rounds}), "proposal_rate") == pytest.approx(2 / 3)


def test_nothing_proposed_is_unknown_and_not_zero():
    arms = paired({"p": [make_round(0, proposed=0)] * 3})
    rate = measure(*arms)["acceptance_rate"]
    assert (rate.value, rate.missing) == (None, "nothing was proposed")
    assert value(arms, "acceptance_length") == 1.0
    assert value(arms, "proposal_rate") == 0.0


STOPPED = [make_round(2), make_round(1, emitted=1, hits=3)]
"""Three tokens, then a draft whose first guess is a stop token, with two more hits behind it."""


def test_the_ways_of_counting_a_stop_among_the_drafts():
    arms = paired({"p": STOPPED}, stop="stop_token")
    assert value(arms, "acceptance_length") == (3 + 1) / 2
    assert value(arms, "acceptance_length_deepspec") == (3 + 1) / 2
    assert value(arms, "acceptance_length_zlab") == (3 + 4) / 2


def test_a_stop_that_is_the_targets_own_token_counts_in_full():
    arms = paired({"p": [make_round(2), make_round(1)]}, stop="stop_token")
    for name in ("acceptance_length", "acceptance_length_deepspec", "acceptance_length_zlab"):
        assert value(arms, name) == 2.5, name


def test_a_cut_at_the_cap_is_trimmed_here_and_counted_in_full_elsewhere():
    arms = paired({"p": [make_round(2), make_round(1, emitted=1, hits=3)]}, stop="length")
    assert value(arms, "acceptance_length") == 2.0
    assert value(arms, "acceptance_length_deepspec") == 3.5


def test_zlab_averages_over_replies():
    arms = paired({"short": [make_round(4)] * 2, "long": [make_round(0)] * 100})
    assert value(arms, "acceptance_length_zlab") == 3.0


def test_acceptance_by_position_both_ways():
    rounds = [make_round(2), make_round(0), make_round(1, proposed=1), make_round(0, proposed=0)]
    found = by_position(paired({"p": rounds})[1].traces)
    assert [(p.proposed, p.tested, p.accepted) for p in found] == [(3, 3, 2), (2, 1, 1), (2, 1, 0), (2, 0, 0)]
    assert [p.unconditional for p in found] == [2 / 3, 1 / 3, 0, 0]
    assert [p.conditional for p in found] == [2 / 3, 1, 0, None]


def test_guesses_behind_a_stop_were_not_put_to_the_test():
    found = by_position([make_trace("p", STOPPED, stop="stop_token")])
    assert [p.tested for p in found] == [2, 1, 1, 0]


# Times


def test_speedup_by_hand():
    arms = paired({"p": [make_round(3, draft_ms=2, verify_ms=11, commit_ms=1)] * 5}, other_ms=2.0)
    assert value(arms, "speedup") == pytest.approx(10 / (16 / 4))
    assert value(arms, "t_draft_ms") == pytest.approx(3)
    assert value(arms, "t_verify_ms") == pytest.approx(11)
    assert value(arms, "t_other_ms") == pytest.approx(2)
    assert value(arms, "t_target_ms") == pytest.approx(10)
    assert value(arms, "draft_share") == pytest.approx(3 / 16)
    assert value(arms, "tokens_per_s") == pytest.approx(250)
    assert value(arms, "ttft_ms") == 20 and value(arms, "draft_prefill_ms") == 2
    baseline_wall, wall = 20 + 200, 22 + 80
    assert value(arms, "speedup_end_to_end") == pytest.approx(baseline_wall / wall)


def test_time_per_token_counts_tokens_and_not_rounds():
    found = measure(*paired({"p": [make_round(3)] * 6, "q": [make_round(3)] * 6}))
    pace = found["tpot_ms_p50"].value
    assert pace == pytest.approx(12 / 4)
    assert found["tokens_per_s"].value * pace == pytest.approx(1000)


def test_the_fastest_reply_is_at_least_as_fast_as_the_mean():
    for seed in range(5):
        base, arm = random_arms(seed)
        fastest = max(1000 * t.emitted / t.decode_ms for t in arm.traces)
        assert fastest >= measure(base, arm)["tokens_per_s"].value


def test_time_to_first_token_does_not_depend_on_the_replys_length():
    short, long = paired({"p": [make_round(1)]}), paired({"p": [make_round(1)] * 50})
    assert value(short, "ttft_ms") == value(long, "ttft_ms") == 20


def test_the_drafters_prefill_begins_after_the_first_token():
    slow = paired({"p": [make_round(1)]}, draft_prefill_ms=500.0)
    assert value(slow, "ttft_ms") == 20 and value(slow, "draft_prefill_ms") == 500
    assert value(slow, "speedup") == value(paired({"p": [make_round(1)]}), "speedup")
    assert value(slow, "speedup_end_to_end") < 0.1


def test_more_accepted_tokens_can_be_slower():
    arms = paired({"p": [make_round(3, draft_ms=40)] * 5})
    assert value(arms, "acceptance_length") == 4.0
    assert value(arms, "speedup") == pytest.approx(10 / (51 / 4)) and value(arms, "speedup") < 1


def test_the_baseline_against_itself_is_exactly_one():
    base, _ = random_arms(3)
    found = measure(base, base)
    assert (found["speedup"].value, found["speedup"].lo, found["speedup"].hi) == (1.0, 1.0, 1.0)
    assert found["acceptance_length"].value == 1.0
    assert found["speedup_end_to_end"].value == 1.0


def _loop_metrics(base: Arm, arm: Arm) -> dict[str, float]:
    """The same figures once more, one token of arithmetic at a time."""
    emitted = accepted = proposed = rounds = with_draft = 0
    draft = verify = decode = wall = base_decode = base_wall = 0.0
    tokens = base_tokens = base_emitted = 0
    for own in arm.traces:
        for other in base.traces:
            if (other.prompt_id, other.turn, other.repeat) != (own.prompt_id, own.turn, own.repeat):
                continue
            base_decode += other.decode_ms
            base_wall += other.wall_ms
            base_emitted += len(other.token_ids) - 1
            base_tokens += len(other.token_ids)
            decode += own.decode_ms
            wall += own.wall_ms
            tokens += len(own.token_ids)
            for i in range(len(own.rounds.proposed)):
                rounds += 1
                emitted += own.rounds.emitted[i]
                accepted += own.rounds.accepted[i]
                proposed += own.rounds.proposed[i]
                with_draft += 1 if own.rounds.proposed[i] > 0 else 0
                draft += own.rounds.draft_ms[i] + own.rounds.commit_ms[i]
                verify += own.rounds.verify_ms[i]
    return {
        "acceptance_length": emitted / rounds,
        "acceptance_length_without_bonus": accepted / rounds,
        "acceptance_rate": accepted / proposed,
        "proposal_rate": with_draft / rounds,
        "speedup": (base_decode / base_emitted) / (decode / emitted),
        "speedup_end_to_end": (base_wall / base_tokens) / (wall / tokens),
        "tokens_per_s": emitted / (decode / 1000),
        "t_target_ms": base_decode / base_emitted,
        "t_draft_ms": draft / rounds,
        "t_verify_ms": verify / rounds,
        "t_other_ms": (decode - draft - verify) / rounds,
        "draft_share": draft / decode,
    }


@pytest.mark.parametrize("seed", range(5))
def test_pooled_figures_equal_plain_loops(seed):
    base, arm = random_arms(seed)
    shuffled = replace(arm, traces=tuple(random.Random(seed).sample(arm.traces, len(arm.traces))))
    found = measure(base, shuffled)
    for name, expected in _loop_metrics(base, arm).items():
        assert found[name].value == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_and_means_equal_plain_loops(seed):
    base, arm = random_arms(seed)
    found = measure(base, arm)
    paces = sorted(t.decode_ms / (len(t.token_ids) - 1) for t in arm.traces)
    for percent in (50, 90, 99):
        place = percent / 100 * (len(paces) - 1)
        low = math.floor(place)
        high = min(low + 1, len(paces) - 1)
        expected = paces[low] + (place - low) * (paces[high] - paces[low])
        assert found[f"tpot_ms_p{percent}"].value == pytest.approx(expected)
    means = [sum(t.rounds.emitted) / len(t.rounds.emitted) for t in arm.traces]
    assert found["acceptance_length_mean_of_means"].value == pytest.approx(sum(means) / len(means))


# Pairs


def test_only_replies_that_both_sides_gave_are_compared():
    base, arm = random_arms(1)
    extra = make_trace("only here", [make_round(4)] * 500)
    fewer = replace(base, traces=tuple(t for t in base.traces if t.prompt_id != "p0" or t.turn != 1))
    kept = replace(arm, traces=tuple(t for t in arm.traces if t.prompt_id != "p0" or t.turn != 1))
    assert measure(fewer, replace(arm, traces=(*arm.traces, extra))) == measure(fewer, kept)


def test_nothing_in_common_is_unknown_with_the_reason():
    base, arm = make_baseline([plain_trace("a")]), make_arm([make_trace("b", [make_round(1)])])
    for name, found in measure(base, arm).items():
        assert found.value is None, name
        assert found.missing == "no reply to a prompt that the baseline answered too", name


# Unknown is None


def strangest() -> dict[str, tuple[Arm, Arm]]:
    base, arm = random_arms(2)
    nothing = make_trace("p", [], tokens=1, decode_ms=0.0)
    timeless = make_trace("p", [make_round(1, draft_ms=0, verify_ms=0, commit_ms=0)], decode_ms=0.0)
    hidden = make_trace("p", None, tokens=9, decode_ms=50.0, rounds_missing="a server does not show them")
    return {
        "one token": (make_baseline([nothing]), make_arm([nothing])),
        "one token, some time": (
            make_baseline([replace(nothing, decode_ms=0.01)]),
            make_arm([replace(nothing, decode_ms=0.02)]),
        ),
        "two tokens": (make_baseline([plain_trace("p", 2)]), make_arm([make_trace("p", [make_round(0)])])),
        "no time": (make_baseline([plain_trace("p", 3)]), make_arm([timeless])),
        "no time on either side": (make_baseline([timeless]), make_arm([timeless])),
        "no replies": (make_baseline([]), make_arm([])),
        "failed": (base, replace(arm, error="out of memory")),
        "failed baseline": (replace(base, error="out of memory"), arm),
        "no rounds shown": (make_baseline([plain_trace("p", 9)]), make_arm([hidden])),
    }


@pytest.mark.parametrize("case", strangest())
def test_a_figure_is_finite_or_none_with_a_reason(case):
    for name, found in measure(*strangest()[case]).items():
        if found.value is None:
            assert found.missing, name
            assert (found.lo, found.hi) == (None, None), name
        else:
            assert all(math.isfinite(x) for x in (found.value, found.lo, found.hi) if x is not None), name


def test_a_reply_of_one_token_has_no_speed():
    found = measure(*strangest()["one token, some time"])
    for name in ("acceptance_length", "speedup", "tokens_per_s", "tpot_ms_p50", "t_target_ms"):
        assert found[name].value is None, name
    assert found["ttft_ms"].value == 20


def test_a_reply_of_two_tokens_is_right():
    found = measure(*strangest()["two tokens"])
    assert found["speedup"].value == pytest.approx(10 / 12)
    assert found["tpot_ms_p50"].value == pytest.approx(12)


def test_no_time_is_no_speed():
    found = measure(*strangest()["no time on either side"])
    for name in ("t_target_ms", "speedup", "tokens_per_s", "tpot_ms_p50", "draft_share"):
        assert found[name].value is None, name
    assert found["acceptance_length"].value == 2.0


def test_a_failed_arm_has_no_figures():
    for name, found in measure(*strangest()["failed"]).items():
        assert (found.value, found.missing) == (None, "the arm failed: out of memory"), name


def test_beside_a_failed_baseline_an_arm_keeps_its_own_counts():
    base, arm = random_arms(2)
    found = measure(replace(base, error="out of memory"), arm)
    assert found["acceptance_length"] == measure(base, arm)["acceptance_length"]
    assert found["speedup"].missing == "the baseline failed: out of memory"
    assert found["t_target_ms"].value is None


def test_an_engine_without_rounds_keeps_its_speedup():
    found = measure(*strangest()["no rounds shown"])
    assert found["speedup"].value == pytest.approx(10 / (50 / 8))
    for name in ("acceptance_length", "acceptance_length_zlab", "t_verify_ms", "t_other_ms", "draft_share"):
        assert (found[name].value, found[name].missing) == (None, "a server does not show them"), name


# Intervals


def test_intervals_are_repeatable_and_hold_the_figure():
    arms = random_arms(4)
    first, second = measure(*arms), measure(*arms)
    assert first == second
    for name in ("acceptance_length", "speedup", "speedup_end_to_end", "tokens_per_s"):
        assert first[name].lo < first[name].value < first[name].hi, name


def test_the_interval_is_over_prompts_and_not_over_replies():
    """Repeats of a prompt say nothing new, so they must not narrow the interval."""
    base, arm = random_arms(5)
    again = [replace(a, traces=(*a.traces, *(replace(t, repeat=1) for t in a.traces))) for a in (base, arm)]
    once, twice = measure(base, arm)["speedup"], measure(*again)["speedup"]
    assert (once.lo, once.hi) == (pytest.approx(twice.lo), pytest.approx(twice.hi))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """30 prompts of 2 or 4 tokens a round with equal odds: the truth is 3. Seeded, 200 intervals."""
    rng = random.Random(7)
    covered = 0
    for _ in range(200):
        arms = paired({f"p{i}": [make_round(rng.choice((1, 3)))] * 3 for i in range(30)})
        found = measure(*arms)["acceptance_length"]
        covered += found.lo <= 3 <= found.hi
    assert 176 <= covered < 200


def test_one_prompt_has_no_interval_and_says_so():
    found = measure(*paired({"p": [make_round(2)] * 9}))["speedup"]
    assert found.value and (found.lo, found.hi) == (None, None)
    assert found.missing == "too few prompts for an interval"


# The formula


@pytest.mark.parametrize("seed", range(5))
def test_the_formula_is_an_identity_on_its_own_replies(seed):
    base, arm = random_arms(seed)
    terms, found = fit(take_sample(base, arm)), measure(base, arm)
    assert terms.speedup == pytest.approx(found["speedup"].value, rel=1e-12)
    for name in ("acceptance_length", "t_target_ms", "t_draft_ms", "t_verify_ms", "t_other_ms"):
        assert getattr(terms, name) == pytest.approx(found[name].value), name
    assert terms.break_even == pytest.approx(terms.acceptance_length / terms.speedup)


def test_even_prompts_predict_the_odd_ones():
    base, arm = random_arms(6)
    split: dict[int, tuple[list[Trace], list[Trace]]] = {0: ([], []), 1: ([], [])}
    order = list(dict.fromkeys(t.prompt_id for t in base.traces))
    for side, traces in enumerate((base.traces, arm.traces)):
        for trace in traces:
            split[order.index(trace.prompt_id) % 2][side].append(trace)
    even, odd = (_loop_metrics(make_baseline(split[i][0]), make_arm(split[i][1])) for i in (0, 1))
    found = predict(take_sample(base, arm))
    assert found.predicted == pytest.approx(even["speedup"])
    assert found.measured == pytest.approx(odd["speedup"])
    assert found.residual_pct == pytest.approx(100 * (even["speedup"] / odd["speedup"] - 1))
    round_ms = even["t_draft_ms"] + even["t_verify_ms"] + even["t_other_ms"]
    assert found.predicted_at_own_length == pytest.approx(
        odd["acceptance_length"] * even["t_target_ms"] / round_ms
    )


def test_prompts_are_numbered_in_the_runs_order_and_not_as_an_arm_came():
    base, arm = random_arms(6)
    backwards = replace(arm, traces=arm.traces[::-1])
    assert predict(take_sample(base, backwards)) == predict(take_sample(base, arm))


def test_a_perfect_prediction_has_no_residual_and_a_shifted_clock_has_one():
    same = {f"p{i}": [make_round(2)] * 5 for i in range(8)}
    assert predict(take_sample(*paired(same))).residual_pct == pytest.approx(0, abs=1e-9)
    slow = make_round(2, verify_ms=22)
    odd_slow = {f"p{i}": [make_round(2) if i % 2 == 0 else slow] * 5 for i in range(8)}
    assert predict(take_sample(*paired(odd_slow))).residual_pct == pytest.approx(100.0)


def test_too_few_prompts_predict_nothing():
    found = predict(take_sample(*paired({f"p{i}": [make_round(2)] for i in range(3)})))
    assert found.predicted is None and "needs 4" in found.missing


def test_no_prediction_without_rounds_and_it_says_why():
    hidden = [
        make_trace(f"p{i}", None, tokens=9, decode_ms=50.0, rounds_missing="not shown") for i in range(6)
    ]
    base = make_baseline([plain_trace(f"p{i}", 9) for i in range(6)])
    assert predict(take_sample(base, make_arm(hidden))).missing == "not shown"


# The table


def test_every_metric_says_what_it_is():
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.title and metric.definition.endswith("."), metric.name
        assert metric.higher_is_better in (True, False, None)
    assert BY_NAME["speedup"].higher_is_better and BY_NAME["tokens_per_s"].higher_is_better
    assert BY_NAME["tpot_ms_p50"].higher_is_better is False
