"""The loop: lossless whatever is guessed, counted as defined, ended where it must end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from draftboard.measure.clock import Clock
from draftboard.measure.decode import DrafterFault, decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard.record.replies import first_difference
from scripted import Script, Scripted, always, oracle, wrong_at
from tiny import plain_greedy, tiny_model, tiny_target
from watched import NEVER, PROMPT, TEXT, V, Watched, check, guesses_at_random, run, watched

SCRIPTS: dict[str, Script] = {
    "nothing": always(),
    "always-right": oracle(TEXT, 5),
    "one-right": oracle(TEXT, 1),
    "one-always-wrong": wrong_at(0, TEXT, 1, V),
    "wrong-at-0-then-right": wrong_at(0, TEXT, 5, V),
    "wrong-at-2": wrong_at(2, TEXT, 5, V),
    "wrong-at-the-last": wrong_at(4, TEXT, 5, V),
    "random": guesses_at_random(0),
    "long": oracle(TEXT, 40),
    "the-same-token": always(*[TEXT[7]] * 6),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 25])
def test_every_cap_is_kept_whatever_is_guessed(script: Script, count: int) -> None:
    check(watched(script, count), count)


@pytest.mark.parametrize("script", ["random", "always-right", "wrong-at-0-then-right"])
def test_the_module_forward_runs_the_same_loop(script: str) -> None:
    check(watched(SCRIPTS[script], 30, fused=False), 30)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7, 8, 15])
def test_every_k_gives_the_same_text_and_full_rounds(k: int) -> None:
    rounds = 3
    reply = watched(oracle(TEXT, k), 1 + rounds * (k + 1))
    check(reply, 1 + rounds * (k + 1))
    assert reply.rounds.emitted == (k + 1,) * rounds
    assert reply.rounds.accepted == reply.rounds.hits == (k,) * rounds


def test_a_drafter_that_never_hits_has_length_one() -> None:
    for script in (wrong_at(0, TEXT, 4, V), always(NEVER), always()):
        rounds = watched(script, 31).rounds
        assert sum(rounds.emitted) / len(rounds) == 1
        assert set(rounds.accepted) == set(rounds.hits) == {0}


def test_a_round_without_guesses_proposes_nothing_and_emits_one() -> None:
    every_other = oracle(TEXT, 3)
    rounds = watched(lambda text: every_other(text) if len(text) % 2 else [], 30).rounds
    silent = [one for one in rounds if not one.draft_ids]
    assert silent
    assert all((one.proposed, one.accepted, one.emitted, one.hits) == (0, 0, 1, 0) for one in silent)


def test_full_rounds_for_200_tokens_also_after_forced_misses() -> None:
    k, prompt = 4, PROMPT
    text = prompt + [int(token) for token in run(tiny_target(), Scripted(always()), 225).token_ids]
    right = oracle(text, k)
    misses = {20, 21, 22, 50, 90, 91, 140}

    def script(tokens: list[int]) -> Sequence[int]:
        spoilt = misses & set(range(len(tokens), len(tokens) + k))
        return [NEVER if len(tokens) + i in spoilt else token for i, token in enumerate(right(tokens))]

    target = tiny_target()
    reply = run(target, Watched(target, script), 201)
    check(reply, 201, text=text)
    short = [one.emitted for one in reply.rounds if one.emitted < k + 1]
    assert len(short) <= len(misses) + 1
    assert sum(reply.rounds.emitted) == 200


def test_more_guesses_than_the_limit_are_a_fault_of_the_drafter() -> None:
    target = tiny_target()
    with pytest.raises(DrafterFault, match=r"propose\(4\) returned 5 guesses; expected at most 4"):
        run(target, Scripted(oracle(TEXT, 5), obedient=False), 6)


def test_a_drafter_is_told_every_token_once_and_in_order() -> None:
    target = tiny_target()
    drafter = Watched(target, guesses_at_random(3))
    reply = run(target, drafter, 40)
    assert drafter.committed == PROMPT + list(reply.token_ids)
    assert tuple(map(len, drafter.commits)) == reply.rounds.emitted
    assert sum(map(len, drafter.features)) == len(drafter.committed) - 1


def test_replies_leave_nothing_behind() -> None:
    target, other = tiny_target(), [3, 3, 1]
    first = run(target, Watched(target, guesses_at_random(1)), 30)
    run(target, Scripted(always(*range(9)), taps=()), 50, prompt=other)
    again = run(target, Watched(target, guesses_at_random(1)), 30)
    assert (again.token_ids, again.rounds.draft_ids) == (first.token_ids, first.rounds.draft_ids)


class FaultyTarget(TargetModel):
    """Cuts its cache `off` positions from where it was told, or empties it."""

    off: int | None = 0

    def truncate(self, length: int) -> None:
        super().truncate(0 if self.off is None else min(length + self.off, self.length))


@pytest.mark.parametrize("off", [None, -1, 1])
def test_a_wrong_cut_shows_in_the_text(off: int | None) -> None:
    target = FaultyTarget(tiny_model(), id="faulty", max_context=256, stop_ids=frozenset())
    script = wrong_at(1, TEXT, 4, V)
    assert list(run(target, Scripted(script), 40).token_ids) == TEXT[len(PROMPT) :][:40]
    target.off = off
    wrong = run(target, Scripted(script), 40)
    assert first_difference(wrong.token_ids, tuple(TEXT[len(PROMPT) :][:40])) is not None


def sampled(target: TargetModel, seed: int, script: Script, count: int = 12) -> tuple[int, ...]:
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), Randomness(seed, target.device))
    clock = Clock(target.device)
    drafter = Scripted(script)
    return decode(target, drafter, torch.tensor(PROMPT), sampler, clock, max_new_tokens=count).token_ids


@pytest.mark.parametrize("script", [always(), lambda text: text[-3:]], ids=["plain", "guessing"])
def test_sampled_replies_repeat_by_seed_and_are_not_the_argmax(script: Script) -> None:
    target = tiny_target(initializer_range=0.1)
    replies = [sampled(target, seed, script) for seed in (0, 1, 2, 0, 1, 2)]
    assert replies[:3] == replies[3:]
    assert len(set(replies)) == 3


FAMILIES = ["llama", "qwen3"]
ALL_K = [1, 2, 3, 5, 7, 8, 15]


def proves_lossless(family: str, k: int, prompts: int, seed: int) -> None:
    """Random prompts and guesses, most of them right: each reply is transformers' plain greedy text."""
    dice, model = random.Random(seed), tiny_model(family, seed % 3)
    target = TargetModel(model, id="tiny", max_context=128, stop_ids=frozenset())
    for _ in range(prompts):
        prompt = [dice.randrange(V) for _ in range(dice.randrange(1, 40))]
        count = dice.randrange(1, 33)
        plain = plain_greedy(model, prompt, count)
        whole = [*prompt, *plain]

        def script(text: list[int], whole: list[int] = whole) -> list[int]:
            truth = whole[len(text) : len(text) + dice.randrange(k + 1)]
            return [token if dice.random() < 0.7 else dice.randrange(V) for token in truth]

        assert list(run(target, Watched(target, script), count, prompt).token_ids) == plain


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", ALL_K)
def test_random_guesses_change_no_text(family: str, k: int) -> None:
    proves_lossless(family, k, prompts=2, seed=k)


@pytest.mark.proof
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", ALL_K)
def test_random_guesses_change_no_text_of_200_prompts(family: str, k: int) -> None:
    proves_lossless(family, k, prompts=200, seed=100 + k)
