"""How figures spread over prompts and context, and whether a drafter pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftboard.judge.prompts import by_context, by_prompt
from draftboard.judge.sample import take_sample
from draftboard.judge.summary import Row, rows
from draftboard.judge.worth import factor, fastest, standing, worth
from record_factory import make_arm, make_baseline, make_round, make_run, make_trace, plain_trace, random_arms


def test_each_prompt_by_plain_loops():
    base, arm = random_arms(3, prompts=9)
    found = by_prompt(take_sample(base, arm))
    assert [one.prompt_id for one in found] == [f"p{i}" for i in range(9)]
    for one in found:
        emitted = rounds = own_ms = base_ms = base_tokens = 0
        for trace in arm.traces:
            if trace.prompt_id == one.prompt_id:
                emitted += sum(trace.rounds.emitted)
                rounds += len(trace.rounds)
                own_ms += trace.decode_ms
        for trace in base.traces:
            if trace.prompt_id == one.prompt_id:
                base_ms += trace.decode_ms
                base_tokens += len(trace.token_ids) - 1
        assert one.acceptance_length == pytest.approx(emitted / rounds)
        assert one.speedup == pytest.approx(base_ms / base_tokens * emitted / own_ms)


def test_a_prompt_without_rounds_has_no_length_and_a_failed_arm_no_prompts():
    base, arm = (
        make_baseline([plain_trace("p0", 4)]),
        make_arm([make_trace("p0", None, tokens=4, decode_ms=9.0)]),
    )
    (one,) = by_prompt(take_sample(base, arm))
    assert one.acceptance_length is None and one.speedup == pytest.approx(30 / 9)
    assert by_prompt(take_sample(base, replace(arm, error="lost"))) == ()


def test_the_context_of_a_round_is_what_was_committed_before_it():
    """Three prompt tokens and the prefill's one, then rounds of 3 and of 1 tokens in turn."""
    trace = make_trace("p0", [make_round(2), make_round(0)] * 30)
    bins = by_context([trace], bins=3)
    assert [(b.first, b.last, b.rounds) for b in bins] == [(4, 43, 20), (44, 83, 20), (84, 123, 20)]
    assert [b.acceptance_length for b in bins] == [2.0, 2.0, 2.0]


def test_acceptance_that_falls_with_the_context_is_seen():
    trace = make_trace("p0", [make_round(4)] * 40 + [make_round(0)] * 40)
    first, last = by_context([trace], bins=2)
    assert (first.acceptance_length, last.acceptance_length) == (5.0, 1.0)


def test_few_rounds_share_a_bin_and_none_have_none():
    assert len(by_context([make_trace("p0", [make_round(1)] * 25)])) == 1
    assert by_context([make_trace("p0", None, tokens=3)]) == ()


@pytest.fixture(scope="module")
def sound() -> Row:
    base, arm = random_arms(5, prompts=20)
    return rows(make_run([base, arm]), [base, arm])[1]


def changed(row: Row, task: str, lo: float, hi: float, **more) -> Row:
    return replace(row, task=task, speedup=(lo + hi) / 2, speedup_lo=lo, speedup_hi=hi, **more)


def test_the_whole_interval_decides(sound):
    gain, loss = changed(sound, "copy", 1.1, 1.3), changed(sound, "chat", 0.7, 0.9)
    unclear = changed(sound, "code", 0.9, 1.3)
    assert (worth([gain]).tone, worth([gain]).text) == ("gain", "pays on copy 1.20x")
    assert (worth([loss]).tone, worth([loss]).text) == ("loss", "costs on chat 0.80x")
    mixed = worth([unclear, loss, gain])
    assert mixed.text == "pays on copy 1.20x; costs on chat 0.80x; no clear difference on code 1.10x"
    assert mixed.tone == "plain" and worth([unclear]).tone == "plain"


def test_what_must_not_be_used_is_said_before_any_figure(sound):
    gain = changed(sound, "copy", 1.1, 1.3)
    assert worth([gain, replace(gain, task="chat", error="lost")]).text == "do not use (chat): lost"
    wrong = worth([replace(gain, lossless="bug", lossless_reason="p0 differs")])
    assert (wrong.tone, wrong.text) == ("bad", "do not use (copy): p0 differs")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"origin": "random"}, "random weights, which say nothing about the method: pays on copy 1.20x"),
        ({"indicative": True}, "indicative: pays on copy 1.20x"),
        ({"valid": False}, "not valid: pays on copy 1.20x"),
    ],
)
def test_doubt_comes_first_and_takes_the_colour(sound, change, said):
    found = worth([changed(sound, "copy", 1.1, 1.3, **change)])
    assert (found.text, found.tone) == (said, "plain")


def test_the_fastest_pays_is_right_and_has_weights_that_mean_something(sound):
    slow, quick = changed(sound, "copy", 1.1, 1.3), changed(sound, "copy", 1.5, 1.7)
    assert fastest([slow, quick]) is quick
    others = [replace(quick, error="lost"), replace(quick, lossless="bug"), replace(quick, origin="random")]
    assert fastest([*others, slow]) is slow
    assert fastest([changed(sound, "copy", 0.9, 1.9)]) is None


def test_the_best_k_is_whole_then_broad_then_fast(sound):
    quick, slow = [changed(sound, "a", 2, 3)], [changed(sound, "a", 1, 2)]
    both = [*slow, changed(sound, "b", 1, 2)]
    broken = [replace(quick[0], error="lost", speedup=None)]
    assert standing(quick) > standing(slow) and standing(both) > standing(quick)
    assert standing(slow) > standing(broken)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1.00x"),
        (1.004, "1.00x"),
        (0.99, "0.99x"),
        (0.9961, "0.996x"),
        (0.99996, "0.99996x"),
        (0.0, "0.00x"),
    ],
)
def test_a_loss_never_reads_as_none(value, shown):
    assert factor(value) == shown
