"""The tile rule against the figures printed with it, and single changes of the four terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftboard.errors import UserError
from draftboard.judge.explain import group_size, neighbours, start_d, tile, what_if
from draftboard.judge.terms import Terms
from record_factory import GUESSING, TARGET, make_arm, make_round, make_trace

STARTS = {1: 127, 2: 63, 4: 31, 8: 15, 16: 7, 32: 3, 3: 41, 5: 24, 6: 20, 7: 17, 12: 9, 128: 0}


@pytest.mark.parametrize("g", STARTS)
def test_where_to_begin(g):
    assert start_d(g) == STARTS[g]
    begun = tile(g, STARTS[g])
    assert begun.tiles == 1 and begun.verdict != "straddling"
    assert tile(g, STARTS[g] + 1).tiles == 2


@pytest.mark.parametrize("g", STARTS)
def test_the_garbled_rule_is_not_the_rule(g):
    """ "D = 128G - 1" fills G * G tiles: it agrees with the examples printed beside it for G = 1 only."""
    garbled = 128 * g - 1
    assert tile(g, garbled).tiles == g * g
    assert (garbled == start_d(g)) == (g == 1)


def test_three_verdicts():
    assert tile(8, 14).verdict == "below a tile"
    assert tile(8, 15).verdict == "on a tile boundary"
    assert tile(8, 16).verdict == "straddling"
    assert tile(8, 31).verdict == "on a tile boundary"
    assert tile(3, 41).verdict == "below a tile"


def test_fill():
    assert tile(8, 15).fill == 1.0
    assert tile(4, 7).fill == 0.25
    assert tile(8, 16).fill == 136 / 256
    assert tile(3, 41).fill == 126 / 128
    assert tile(8, 7, tile_rows=64).fill == 1.0


def test_the_group_comes_from_the_target():
    assert group_size(TARGET) == 3
    with pytest.raises(UserError, match="9 query heads do not divide over 2 KV heads; give G with --g"):
        group_size(replace(TARGET, kv_heads=2))


@pytest.mark.parametrize("call", [lambda: tile(0, 1), lambda: tile(8, -1), lambda: tile(8, 1, 0)])
def test_senseless_numbers_are_refused(call):
    with pytest.raises(UserError, match="or more, found"):
        call()


def test_a_group_larger_than_a_tile_has_no_beginning():
    with pytest.raises(UserError, match="more than a tile"):
        start_d(129)


TERMS = Terms(acceptance_length=3.0, t_target_ms=10.0, t_draft_ms=4.0, t_verify_ms=15.0, t_other_ms=1.0)


def test_what_if_changes_one_term_at_a_time():
    found = {one.change: one for one in what_if(TERMS)}
    assert found["as measured"].speedup == pytest.approx(1.5) and found["as measured"].gain == 1.0
    assert found["half the draft cost"].speedup == pytest.approx(30 / 18)
    assert found["a free draft"].speedup == pytest.approx(30 / 16)
    assert found["verification at the price of one token"].speedup == pytest.approx(30 / 15)
    assert found["no cost of the loop"].speedup == pytest.approx(30 / 19)
    assert found["one more token per round"].speedup == pytest.approx(2.0)


def test_break_even():
    assert TERMS.break_even == pytest.approx(2.0)
    assert replace(TERMS, acceptance_length=TERMS.break_even).speedup == pytest.approx(1.0)


def drafting(accepted: list[int], k: int = 4, **card):
    """An arm with one round for each number of accepted guesses."""
    rounds = [make_round(count, proposed=k) for count in accepted]
    return make_arm([make_trace("p0", rounds)], k=k, card=replace(GUESSING, **card))


def test_one_draft_fewer_takes_a_token_from_each_full_round():
    fewer, more = neighbours(TERMS, drafting([4, 4, 2, 0]), {})
    assert (fewer.k, more.k) == (3, 5)
    assert fewer.terms.acceptance_length == pytest.approx(3.0 - 2 / 4)
    assert fewer.terms.t_draft_ms == 4.0 and fewer.terms.t_verify_ms == 15.0
    assert fewer.gain == pytest.approx(fewer.speedup / 1.5)


def test_one_draft_more_adds_what_the_last_place_was_accepted_of():
    """The fourth guess was tested in three rounds and accepted in two."""
    _, more = neighbours(TERMS, drafting([4, 4, 3, 0]), {})
    assert more.terms.acceptance_length == pytest.approx(3.0 + 2 / 4 * 2 / 3)


def test_a_serial_draft_costs_by_its_length_and_others_do_not():
    fewer, more = neighbours(TERMS, drafting([4, 0], drafting="serial"), {})
    assert (fewer.terms.t_draft_ms, more.terms.t_draft_ms) == (3.0, 5.0)
    fewer, more = neighbours(TERMS, drafting([4, 0], drafting="parallel"), {})
    assert (fewer.terms.t_draft_ms, more.terms.t_draft_ms) == (4.0, 4.0)


def test_verification_goes_with_the_timed_forwards():
    """Five rows lie between four and eight; outside of what was timed nothing is assumed."""
    fewer, more = neighbours(TERMS, drafting([4, 0]), {"1": 8.0, "4": 10.0, "8": 18.0})
    assert fewer.terms.t_verify_ms == pytest.approx(15 * 10 / 12)
    assert more.terms.t_verify_ms == pytest.approx(15 * 14 / 12)
    fewer, more = neighbours(TERMS, drafting([4, 0]), {"1": 8.0, "5": 10.0})
    assert fewer.terms.t_verify_ms == pytest.approx(15 * 9.5 / 10) and more.terms.t_verify_ms == 15.0


def test_there_are_no_neighbours_without_a_k_or_a_proposal():
    assert neighbours(TERMS, replace(drafting([4]), k=None), {}) == ()
    assert neighbours(TERMS, drafting([0], k=0), {}) == ()
    assert [one.k for one in neighbours(TERMS, drafting([1, 0], k=1), {})] == [2]
