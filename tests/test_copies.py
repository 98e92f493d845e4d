"""Drafters that know the target's text: believed all the time, cut where they are wrong, ended in time.

Each real drafter runs with weights set by hand (`copies`) so that it knows what the target will say. All
guesses are then accepted, over 200 rounds and after forced rejections: a slot that is off by one, a wrong
anchor, a state or a token left over from a rejected guess would show at once. These weights look at the
newest tokens only. That every older cached position is right, too, is shown with random weights, which look
at all of them: by `test_every_drafter`, and for a draft model that is its target by `test_draft_model`.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import cycle, product
from typing import Any

import pytest
import torch

import copies
from draftboard.drafter import Drafter
from draftboard.measure import rehearsal
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Sampler
from draftboard.measure.target import TargetModel
from draftboard_drafters import ngram
from shipped import ALL_K, FAMILIES

START = [0, *copies.following(0, 64)]
"""A prompt that holds the whole cycle twice, for the drafter that can only know what it has read."""


def by_text(table: Any, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """The lookup finds what follows any token where it stood first, in the prompt."""
    options: dict[str, Any] = {"min_n": 1, "max_n": 1, "policy": "longest-then-earliest"}
    return ngram.build(target, sampler, num_speculative_tokens=k, **options)


COPIES = {**copies.TABLES, "ngram": by_text}
SAMPLE = [(*copy, k) for copy, k in zip(product(copies.TABLES, FAMILIES), cycle(ALL_K), strict=False)]
"""Every copy once a family, and in all every K."""


@cache
def cycle_target(family: str, max_context: int = 256) -> TargetModel:
    return copies.cycle_target(family, max_context=max_context)


def reply(drafter: Drafter, target: TargetModel, judge: Sampler, prompt: list[int], count: int) -> Reply:
    clock = Clock(target.device)
    return decode(target, drafter, torch.tensor(prompt), judge, clock, max_new_tokens=count)


def prove_belief(name: str, family: str, k: int, rounds: int, forced: bool) -> None:
    """Every guess of every round is kept, up to where it is rejected by force."""
    dice = random.Random(name)
    plan = tuple(dice.randrange(k + 1) if forced else k for _ in range(rounds))
    count = 1 + sum(plan) + len(plan)
    target, judge = cycle_target(family, max_context=len(START) + count), copies.Rejecting(plan)
    drafter = COPIES[name](copies.CYCLE, target, judge, k)
    assert reply(drafter, target, judge, START, count).rounds.accepted == plan


BELIEF = pytest.mark.parametrize("forced", [False, True], ids=["unforced", "rejected-at-random"])


@BELIEF
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_believed(name: str, forced: bool) -> None:
    prove_belief(name, "llama", 4, rounds=25, forced=forced)


@pytest.mark.proof
@BELIEF
@pytest.mark.parametrize("k", ALL_K)
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_believed_for_200_rounds(name: str, k: int, forced: bool) -> None:
    prove_belief(name, FAMILIES[k % 2], k, rounds=200, forced=forced)


@pytest.mark.parametrize("name", COPIES)
def test_a_stop_at_every_offset_of_a_draft_ends_the_reply_there(name: str) -> None:
    target, k = copies.cycle_target("qwen3"), 6
    judge, said = rehearsal.sampler(target), copies.following(START[-1], 16)
    drafter, emitted = COPIES[name](copies.CYCLE, target, judge, k), set()
    for place in range(1, 15):
        target.stop_ids = frozenset([said[place]])
        found = reply(drafter, target, judge, START, 16)
        assert found.token_ids == said[: place + 1]
        emitted.add(found.rounds.emitted[-1])
    assert emitted == set(range(1, k + 2))


@pytest.mark.parametrize("name", COPIES)
def test_a_cap_cuts_a_draft_to_the_token(name: str) -> None:
    target = cycle_target("llama")
    judge, said = rehearsal.sampler(target), copies.following(START[-1], 6)
    drafter = COPIES[name](copies.CYCLE, target, judge, 4)
    for cap in range(1, 7):
        found = reply(drafter, target, judge, START, cap)
        assert found.token_ids == said[:cap]
        assert found.rounds.proposed == found.rounds.accepted
        assert sum(found.rounds.emitted) == cap - 1


def prove_lossless_when_half_right(name: str, family: str, k: int, count: int) -> None:
    """A copy that is wrong after one token in three is cut at every depth, and the reply stays right."""
    target, dice, accepted = cycle_target(family), random.Random(k), set[int]()
    judge = rehearsal.sampler(target)
    drafter = copies.TABLES[name](copies.spoilt(10), target, judge, k)
    for _ in range(count):
        prompt = [dice.randrange(copies.MASK) for _ in range(dice.randrange(16, 40))]
        cap = dice.randrange(16, 33)
        found = reply(drafter, target, judge, prompt, cap)
        assert found.token_ids == copies.following(prompt[-1], cap)
        accepted.update(found.rounds.accepted)
    assert accepted >= set(range(min(k, 3) + 1))


@pytest.mark.parametrize(("name", "family", "k"), SAMPLE)
def test_a_half_right_drafter_changes_no_text(name: str, family: str, k: int) -> None:
    prove_lossless_when_half_right(name, family, k, count=4)


@pytest.mark.proof
@pytest.mark.parametrize("k", ALL_K)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", copies.TABLES)
def test_a_half_right_drafter_changes_no_text_of_50_prompts(name: str, family: str, k: int) -> None:
    prove_lossless_when_half_right(name, family, k, count=50)
