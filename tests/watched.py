"""A decoding loop under watch: a drafter that checks what it is told, and a recount of every round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from scripted import Script, Scripted
from tiny import SIZES, plain_greedy, tiny_model, tiny_target

V = SIZES["vocab_size"]
PROMPT = [12, 33, 8, 28, 9]
TEXT = PROMPT + plain_greedy(tiny_model(), PROMPT, 60)
"""The prompt and what the target says next, by transformers alone; the reply's first 19 tokens differ."""
NEVER = next(token for token in range(V) if token not in TEXT)


class Watched(Scripted):
    """Scripted, and checks after every round what the loop promises a drafter."""

    def __init__(self, target: TargetModel, script: Script, taps: tuple[int, ...] = (0, FINAL_NORM)) -> None:
        super().__init__(script, taps=taps)
        self.target = target

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        super().prefill(tokens, features)
        self.check(tokens[:-1], features, predicted=1)

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        before = self.committed[-1:]
        super().commit(tokens, features)
        self.check(torch.tensor(before + tokens.tolist()[:-1]), features, predicted=len(tokens))

    def check(self, predictors: Tensor, features: Tensor, predicted: int) -> None:
        """features[i] is the state that predicted tokens[i]; the newest token is not in the cache."""
        assert self.target.length == len(self.committed) - 1
        assert features.shape == (len(predictors), len(self.taps), self.target.hidden_size)
        assert torch.equal(features[:, 0], self.target.embed(predictors))
        choices = self.target.head(features[-predicted:, 1]).argmax(-1)
        assert choices.tolist() == self.committed[-predicted:]


def watched(script: Script, count: int, stop_ids: frozenset[int] = frozenset(), fused: bool = True) -> Reply:
    target = shared_target(fused)
    target.stop_ids = stop_ids
    return run(target, Watched(target, script), count)


@cache
def shared_target(fused: bool) -> TargetModel:
    return tiny_target(fused=fused)


def run(target: TargetModel, drafter: Scripted, count: int, prompt: Sequence[int] = PROMPT) -> Reply:
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    before = drafter.replies
    reply = decode(target, drafter, torch.tensor(prompt), sampler, Clock(target.device), max_new_tokens=count)
    assert drafter.replies == before + 1, "the drafter was not released"
    return reply


def recounted(draft: Sequence[int], truth: Sequence[int], stop_ids: frozenset[int]) -> tuple[int, ...]:
    """(proposed, accepted, emitted, hits) of a round, from its guesses and what the target says."""
    hits = 0
    while hits < len(draft) and draft[hits] == truth[hits]:
        hits += 1
    line = truth[: hits + 1]
    stops = [place for place, token in enumerate(line) if token in stop_ids]
    emitted = stops[0] + 1 if stops else hits + 1
    return len(draft), min(hits, emitted), emitted, hits


def check(
    reply: Reply, count: int, stop_ids: frozenset[int] = frozenset(), text: Sequence[int] = TEXT
) -> None:
    """The reply is the target's own, ends where it must, and every round is counted by the definition."""
    said = list(text[len(PROMPT) : len(PROMPT) + count])
    ends = [place for place, token in enumerate(said) if token in stop_ids]
    expected = said[: ends[0] + 1] if ends else said
    assert list(reply.token_ids) == expected
    assert reply.stop == ("stop_token" if ends else "length")
    at = len(PROMPT) + 1
    for one in reply.rounds:
        counts = (one.proposed, one.accepted, one.emitted, one.hits)
        assert counts == recounted(one.draft_ids, text[at:], stop_ids)
        at += one.emitted
    assert sum(reply.rounds.emitted) == len(expected) - 1


def guesses_at_random(seed: int) -> Script:
    """Up to 8 guesses, each right with even odds."""
    dice = random.Random(seed)

    def script(text: list[int]) -> list[int]:
        truth = TEXT[len(text) : len(text) + dice.randrange(9)]
        return [token if dice.random() < 0.5 else dice.randrange(V) for token in truth]

    return script
