"""Long runs with every drafter in the folder: many prompts at every K, hundreds of rounds in one text.

`test_drafters` shows that each keeps the contract, a few steps at a time. `make proof` runs these in full;
`make test` samples the same code.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard.measure import rehearsal
from draftboard.measure.cache import KVCache
from draftboard.measure.sampling import Randomness
from draftboard_drafters._serial import SerialDrafter
from shipped import ALL_K, FAMILIES, GUESSING, MODULES, caches, maker
from tiny import SIZES, tiny_model, tiny_target

SAMPLE = [(*drafter, k) for drafter, k in zip(product(MODULES, FAMILIES), cycle(ALL_K), strict=False)]
"""Every drafter once a family, and in all every K."""
WHOLE = [(name, k) for name in MODULES for k in (ALL_K if name in GUESSING else ALL_K[:1])]
"""Every drafter at every K; the baseline has none."""


class Case(NamedTuple):
    """A prompt, where its reply ends, and what transformers alone says."""

    prompt: list[int]
    cap: int
    stops: frozenset[int]
    said: list[int]


@cache
def cases(family: str, count: int) -> list[Case]:
    """Random prompts of 1 to 39 tokens, replies of 1 to 20, every second one cut by a stop token."""
    dice, model, found = random.Random(family), tiny_model(family), list[Case]()
    while len(found) < count:
        ids, cap = dice.choice([6, SIZES["vocab_size"]]), 1 + 7 * len(found) % 20
        prompt = [dice.randrange(ids) for _ in range(dice.randrange(1, 40))]
        said = clear_greedy(model, prompt, cap)
        if said is not None:
            stop = dice.choice(said) if len(found) % 2 else -1
            end = said.index(stop) + 1 if stop in said else cap
            found.append(Case(prompt, cap, frozenset([stop]), said[:end]))
    return found


@torch.inference_mode()
def clear_greedy(model: Any, prompt: list[int], count: int) -> list[int] | None:
    """`count` tokens by argmax, the whole text run afresh for each; None where two were almost as likely, so
    that rounding would decide."""
    text = list(prompt)
    for _ in range(count):
        best = model(input_ids=torch.tensor([text])).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < 1e-3:
            return None
        text.append(int(best.indices[0]))
    return text[len(prompt) :]


def prove_lossless(name: str, family: str, k: int, count: int) -> None:
    """Every reply is the target's own, to the token."""
    target = tiny_target(family)
    drafter, guesses = maker(name, k)(target, rehearsal.sampler(target)), 0
    for case in cases(family, count):
        target.stop_ids = case.stops
        reply = rehearsal.reply(drafter, target, case.prompt, case.cap)
        assert list(reply.token_ids) == case.said
        guesses += sum(reply.rounds.proposed)
    assert (guesses > 0) == (name in GUESSING)


@pytest.mark.parametrize(("name", "family", "k"), SAMPLE)
def test_replies_are_the_targets_own(name: str, family: str, k: int) -> None:
    prove_lossless(name, family, k, count=6)


@pytest.mark.proof
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "k"), WHOLE)
def test_replies_to_200_prompts_are_the_targets_own(name: str, family: str, k: int) -> None:
    prove_lossless(name, family, k, count=200)


def parts(draft: Draft) -> tuple[Any, ...]:
    return draft.tokens, draft.probs, draft.confidence


def spoil_the_rest(drafter: Any) -> None:
    """Whoever reads a position behind the end of a cache gets no number."""
    for held in caches(drafter):
        for store in (held.keys, held.values):
            store[:, :, held.length :] = torch.nan


@torch.inference_mode()
def prove_memory(
    name: str, family: str, rounds: int, meddle: Callable[[KVCache], None] = lambda held: None
) -> None:
    """In one text at temperature 1, each draft and its laws are those of a drafter prefilled with the text.

    A cache holds the committed tokens but the newest. After a round in which every guess was kept, the last
    guess may be missing too: it was never fed. What stands behind its end is made unusable before each draft.
    """
    target = tiny_target(family, max_context=1024, max_position_embeddings=1024)
    judge, dice = rehearsal.sampler(target, 1.0), random.Random(0)
    drafter, spare = (maker(name, 3)(target, judge) for _ in range(2))
    with rehearsal.Walk(drafter, target, [3, 1, 4, 1, 5]) as walk:
        for number in range(rounds):
            spoil_the_rest(drafter)
            judge.restart(Randomness(number, target.device))
            draft = walk.propose()
            judge.restart(Randomness(number, target.device))
            spare.prefill(walk.tokens, walk.features)
            spoil_the_rest(spare)
            fresh = spare.propose(rehearsal.MANY)
            spare.release()
            torch.testing.assert_close(parts(draft), parts(fresh), atol=1e-4, rtol=0)
            new = rehearsal.some_kept(rehearsal.ids(draft), dice)
            walk.commit(new)
            for held in caches(drafter):
                assert 0 <= len(walk.tokens) - 1 - held.length <= (len(new) > len(draft.tokens))
                meddle(held)


@pytest.mark.parametrize("name", GUESSING)
def test_a_draft_in_a_long_text_is_that_of_a_fresh_drafter(name: str) -> None:
    prove_memory(name, "llama", rounds=20)


@pytest.mark.proof
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", GUESSING)
def test_drafts_of_200_rounds_are_those_of_a_fresh_drafter(name: str, family: str) -> None:
    prove_memory(name, family, rounds=200)


def stale(held: KVCache) -> None:
    """The newest position gets what belongs to the one before it."""
    for store in (held.keys, held.values):
        store[:, :, held.length - 1] = store[:, :, held.length - 2]


def holds_a_cache(name: str) -> bool:
    target = tiny_target()
    return bool(caches(maker(name, 1)(target, rehearsal.sampler(target))))


@pytest.mark.parametrize("name", [name for name in GUESSING if holds_a_cache(name)])
def test_a_single_stale_position_shows_in_the_drafts(name: str) -> None:
    with pytest.raises(AssertionError, match="not close"):
        prove_memory(name, "llama", rounds=5, meddle=stale)


def test_a_position_that_was_never_written_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    propose, run = SerialDrafter.propose, SerialDrafter._run

    def one_late(self: SerialDrafter, token: Tensor, feature: Tensor, place: slice) -> Tensor:
        return run(self, token, feature, slice(place.start + 1, place.stop + 1))

    def gapped(self: SerialDrafter, limit: int) -> Draft:
        with monkeypatch.context() as inner:
            inner.setattr(SerialDrafter, "_run", one_late)
            return propose(self, limit)

    monkeypatch.setattr(SerialDrafter, "propose", gapped)
    with pytest.raises(AssertionError):
        prove_memory("eagle3", "llama", rounds=2)


def test_the_caches_of_four_drafters_and_of_a_draft_model_are_found() -> None:
    """The promise about their length would hold for none of them otherwise."""
    assert {name for name in GUESSING if holds_a_cache(name)} >= {
        "draft_model",
        "eagle3",
        "mtp",
        "dflash",
        "dspark",
    }
