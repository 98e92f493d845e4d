"""N-gram lookup: both published conventions, the edges of matching, and its cost."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftboard.drafter import Drafter, UserError
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import ngram
from tiny import plain_greedy, tiny_model, tiny_target

CASES = json.loads((Path(__file__).parent / "data/golden/ngram/expected.json").read_text())["cases"]
NO_FEATURES = torch.empty(0, 0, 1)
POLICIES = ["longest-then-latest", "longest-then-earliest", "first"]


def prefilled(tokens: list[int], k: int = 8, **options: Any) -> Drafter:
    target: Any = SimpleNamespace(device=torch.device("cpu"))
    drafter = ngram.build(
        target, Sampler(Sampling(), Randomness(0, target.device)), num_speculative_tokens=k, **options
    )
    drafter.prefill(torch.tensor(tokens, dtype=torch.int64), NO_FEATURES)
    return drafter


def proposed(tokens: list[int], limit: int = 99, **options: Any) -> list[int]:
    return prefilled(tokens, **options).propose(limit).tokens.tolist()


LOOPING: dict[str, Any] = {"initializer_range": 0.15}
"""Sizes of random weights at which a tiny target falls into loops, which is what a lookup lives on."""


def reply(prompt: list[int], count: int, seed: int = 0, **options: Any) -> Reply:
    target = tiny_target(seed=seed, **LOOPING)
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    drafter = ngram.build(target, sampler, **options)
    return decode(target, drafter, torch.tensor(prompt), sampler, Clock(target.device), max_new_tokens=count)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['kind']}")
def test_golden_vllm(case: dict[str, Any]) -> None:
    room = case["max_model_len"] - len(case["tokens"])
    found = proposed(
        case["tokens"],
        limit=room,
        k=case["K"],
        min_n=case["min_n"],
        max_n=case["max_n"],
        policy="longest-then-earliest",
    )
    assert found == case["proposal_vllm"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['kind']}")
def test_golden_transformers(case: dict[str, Any]) -> None:
    """Its generation loop drafts nothing for the last token, and it cuts a draft before an end-of-text id."""
    room = 0 if case["max_model_len"] == len(case["tokens"]) + 1 else case["K"]
    found = proposed(case["tokens"], limit=room, k=case["K"], max_n=case["max_n"], policy="first")
    assert found == case["proposal_transformers"]
    if case["eos"] is not None:
        cut = found.index(case["eos"]) if case["eos"] in found else len(found)
        assert found[:cut] == case["proposal_transformers_with_eos"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['kind']}")
@pytest.mark.parametrize("policy", POLICIES)
def test_equals_a_plain_search(case: dict[str, Any], policy: str) -> None:
    text, k = case["tokens"], case["K"]
    low, high = (1 if policy == "first" else case["min_n"]), case["max_n"]
    expected: list[int] = []
    for n in range(min(high, len(text) - 1), low - 1, -1):
        places = [at for at in range(n, len(text)) if text[at - n : at] == text[-n:]]
        if places:
            at = places[-1] if policy == "longest-then-latest" else places[0]
            expected = text[at : at + k]
            break
    assert proposed(text, k=k, min_n=low, max_n=high, policy=policy) == expected


A, B, X, Y = 1, 2, 7, 8


@pytest.mark.parametrize(("policy", "follower"), list(zip(POLICIES, [Y, X, X], strict=True)))
def test_ties_go_to_the_place_the_policy_names(policy: str, follower: int) -> None:
    text = [A, B, X, 3, A, B, Y, 4, A, B]
    assert proposed(text, policy=policy)[0] == follower


def test_matches_are_found_in_committed_text_too() -> None:
    drafter = prefilled([5, 6, A])
    drafter.commit(torch.tensor([B, X, 9, A, B]), NO_FEATURES)
    assert drafter.propose(2).tokens.tolist() == [X, 9]


def test_a_longer_match_beats_a_newer_one() -> None:
    assert proposed([A, B, X, 3, B, Y, A, B], k=1) == [X]


@pytest.mark.parametrize("length", range(6))
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_run_of_one_token_proposes_what_overlaps_and_never_matches_itself(length: int, n: int) -> None:
    """In a run of `length` equal tokens a suffix of n stands length - n times before the end, newest last."""
    expected = [A] if length > n else []
    assert proposed([A] * length, min_n=n, max_n=n) == expected
    oldest = proposed([A] * length, min_n=n, max_n=n, policy="longest-then-earliest")
    assert oldest == [A] * max(0, length - n)


def test_an_overlapping_match_stops_where_the_text_ends() -> None:
    assert proposed([A, B, A, B, A], k=9, policy="longest-then-earliest") == [B, A]


def test_a_short_match_is_a_short_draft_without_fillers() -> None:
    draft = prefilled([A, B, A], k=8).propose(8)
    assert draft.tokens.tolist() == [B, A]
    assert draft.tokens.dtype == torch.int64
    assert draft.probs is None


@pytest.mark.parametrize("limit", range(4))
def test_the_limit_is_kept(limit: int) -> None:
    assert len(proposed([A, B, X, Y, A, B], limit=limit)) == limit


def test_no_match_is_an_empty_draft_and_a_plain_round() -> None:
    rounds = reply([11, 22, 33], 1 + 8, seed=6, min_n=4).rounds
    assert rounds.proposed == (0,) * 8
    assert rounds.emitted == (1,) * 8


@pytest.mark.parametrize("prompt", [[3], [3, 4], [3, 4, 5]])
def test_a_prompt_shorter_than_min_n_decodes_as_ever(prompt: list[int]) -> None:
    expected = plain_greedy(tiny_model(**LOOPING), prompt, 20)
    assert list(reply(prompt, 20, min_n=4, max_n=6).token_ids) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_min_n_changes_only_the_rounds(policy: str) -> None:
    prompt = [9, 4, 9, 4, 2]
    lengths = [1] if policy == "first" else range(1, 9)
    replies = [reply(prompt, 60, min_n=n, max_n=8, policy=policy) for n in lengths]
    assert {r.token_ids for r in replies} == {tuple(plain_greedy(tiny_model(**LOOPING), prompt, 60))}
    assert max(sum(r.rounds.accepted) for r in replies) > 10


def test_the_draft_is_as_long_as_ever_after_a_bad_stretch() -> None:
    drafter = prefilled([10, 11, 12, 13, 14, 15, 16, 17, 18], k=6)
    for token in range(40, 80):
        drafter.propose(6)
        drafter.commit(torch.tensor([token]), NO_FEATURES)
    drafter.commit(torch.tensor([10, 11]), NO_FEATURES)
    assert drafter.propose(6).tokens.tolist() == [12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize("forget", [True, False])
def test_nothing_of_one_prompt_is_left_in_the_next(forget: bool) -> None:
    drafter = prefilled([A, B, X, Y])
    if forget:
        drafter.release()
    drafter.prefill(torch.tensor([9, A, B]), NO_FEATURES)
    assert drafter.propose(8).tokens.tolist() == []


class Counting(dict[tuple[int, ...], int]):
    """A table that counts how often it is touched."""

    touched = 0

    def get(self, *args: Any) -> Any:
        Counting.touched += 1
        return super().get(*args)

    def __setitem__(self, *args: Any) -> None:
        Counting.touched += 1
        super().__setitem__(*args)


def cost_of_a_round(context: int) -> tuple[int, int]:
    """Table accesses of one proposal, and of committing one token, after so many distinct tokens."""
    drafter: Any = prefilled(list(range(context)), min_n=1, max_n=4)
    drafter.index.tables = {n: Counting(table) for n, table in drafter.index.tables.items()}
    Counting.touched = 0
    drafter.propose(8)
    searching, Counting.touched = Counting.touched, 0
    drafter.commit(torch.tensor([-1]), NO_FEATURES)
    return searching, Counting.touched


def test_a_round_costs_the_same_whatever_the_context() -> None:
    assert cost_of_a_round(30) == cost_of_a_round(30_000) == (4, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 0}, "num_speculative_tokens must be at least 1, found 0"),
        ({"min_n": 0}, "min_n=0"),
        ({"min_n": 5, "max_n": 4}, "min_n=5, max_n=4"),
        ({"policy": "longest-then-last"}, "did you mean 'longest-then-latest'?"),
        ({"policy": "first", "min_n": 2}, "set min_n=1"),
    ],
)
def test_a_lookup_that_could_never_run_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        prefilled([1], **options)
    assert said in str(caught.value)
