"""Where a reply ends: stop tokens at every place, caps, and the room in the cache."""

from __future__ import annotations

import pytest

from draftboard.errors import UserError
from scripted import Script, Scripted, always, oracle, wrong_at
from tiny import tiny_target
from watched import NEVER, PROMPT, TEXT, V, Watched, check, run, watched


def stop_at(place: int) -> frozenset[int]:
    """The token the target really says at this place of its reply, declared a stop token."""
    return frozenset([TEXT[len(PROMPT) + place]])


@pytest.mark.parametrize("place", range(1, 15))
def test_a_stop_at_every_offset_of_a_block_ends_the_reply_there(place: int) -> None:
    for script in (oracle(TEXT, 6), wrong_at(3, TEXT, 6, V)):
        check(watched(script, 50, stop_at(place)), 50, stop_at(place))


def test_those_stops_fell_on_every_offset_of_a_block_and_on_its_bonus() -> None:
    ended = [watched(oracle(TEXT, 6), 50, stop_at(place)).rounds for place in range(1, 15)]
    last = [list(rounds)[-1] for rounds in ended]
    assert {one.emitted for one in last} == set(range(1, 8))
    bonus = [one for one in last if one.emitted == 7]
    drafted = [one for one in last if one.emitted < 7]
    assert all(one.accepted == one.hits == 6 for one in bonus)
    assert all(one.accepted == one.emitted <= one.hits == 6 for one in drafted)


def test_several_stop_ids_end_at_the_first_that_is_said() -> None:
    stops = stop_at(9) | stop_at(5) | frozenset([NEVER])
    reply = watched(oracle(TEXT, 8), 50, stops)
    check(reply, 50, stops)
    assert len(reply.token_ids) <= 6


def test_a_drafted_stop_that_the_target_rejects_ends_nothing() -> None:
    stops = frozenset([NEVER])
    for script in (
        always(NEVER),
        always(NEVER, NEVER),
        lambda text: [*TEXT[len(text) : len(text) + 2], NEVER],
    ):
        reply = watched(script, 20, stops)
        check(reply, 20, stops)
        assert (reply.stop, len(reply.token_ids)) == ("length", 20)
        assert any(NEVER in ids for ids in reply.rounds.draft_ids)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_first_token_that_stops_ends_the_reply_before_any_round(count: int) -> None:
    reply = watched(oracle(TEXT, 4), count, stop_at(0))
    assert (reply.token_ids, reply.stop) == ((TEXT[len(PROMPT)],), "stop_token")
    assert len(reply.rounds) == 0


def test_one_new_token_needs_no_round() -> None:
    target = tiny_target()
    drafter = Watched(target, oracle(TEXT, 4))
    reply = run(target, drafter, 1)
    assert (len(reply.token_ids), len(reply.rounds), reply.stop, drafter.limits) == (1, 0, "length", [])


@pytest.mark.parametrize("count", [7, 240])
def test_the_cap_in_force_is_the_one_asked_for(count: int) -> None:
    reply = run(tiny_target(), Scripted(lambda text: text[-8:]), count)
    assert (len(reply.token_ids), reply.stop) == (count, "length")


def test_the_limit_is_the_room_that_is_left() -> None:
    target = tiny_target()
    drafter = Watched(target, oracle(TEXT, 3))
    reply = run(target, drafter, 10)
    assert drafter.limits == [8, 4, 0]
    assert reply.rounds.proposed == (3, 3, 0)


@pytest.mark.parametrize("script", [always(), oracle(TEXT, 5), always(*[NEVER] * 30)])
def test_a_cache_with_room_for_all_but_the_last_token_is_enough(script: Script) -> None:
    target = tiny_target(max_context=len(PROMPT) + 20 - 1)
    check(run(target, Watched(target, script), 20), 20)
    with pytest.raises(UserError, match=r"context of \d+ tokens does not fit the cache of 24; shorten"):
        run(target, Scripted(script), 21)


def test_a_prompt_without_tokens_is_refused_before_anything_runs() -> None:
    target = tiny_target()
    with pytest.raises(UserError, match=r"the prompt has no tokens.*; give at least one"):
        run(target, Scripted(always()), 5, [])
    assert target.length == 0
