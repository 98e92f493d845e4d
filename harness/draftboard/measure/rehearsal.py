"""Leading a drafter through texts and verdicts that a check dictates, on a target of random weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftboard.drafter import Draft, Drafter, DraftSampler, Target
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling

Make = Callable[[Target, DraftSampler], Drafter]
Check = Callable[[Make, TargetModel], None]

MANY = 64
"""A limit beyond any K in use: the drafter drafts all it wants."""

PROMPTS = ([5], [3, 1, 4], [2, 7, 2, 7, 2], [1, 2, 3, 4, 5, 6, 1, 2, 3])
"""Texts with and without repetition, down to a single token."""

ALPHABET = 8
"""Dictated tokens are ids below this, so that texts repeat themselves."""


class ContractError(AssertionError):
    """A promise of the drafter protocol was broken."""


def demand(kept: bool, otherwise: str) -> None:
    """Raises ContractError with the sentence `otherwise` unless the promise was kept."""
    if not kept:
        raise ContractError(otherwise)


def toy_target(family: str = "llama", seed: int = 0) -> TargetModel:
    """A float32 target of a transformers model type with random weights, small enough for checks.

    Its greedy text falls into loops, as a lookup needs, and its likeliest tokens are well apart.
    """
    config = AutoConfig.for_model(
        family,
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return TargetModel(model, id=f"toy-{family}-{seed}", max_context=512, stop_ids=frozenset())


def sampler(target: TargetModel, temperature: float = 0.0, seed: int = 0) -> Sampler:
    """The run's sampler at a temperature, on the target's device."""
    return Sampler(Sampling(temperature=temperature), Randomness(seed, target.device))


class Walk:
    """A drafter led through one text over the target's true features; leaving it releases the drafter."""

    def __init__(self, drafter: Drafter, target: TargetModel, prompt: list[int]) -> None:
        """Prefills with the prompt and a first reply token, id 0."""
        self.drafter, self.target = drafter, target
        self.tokens = torch.tensor([*prompt, 0], device=target.device)
        target.begin(drafter.taps)
        _, self.features = target.prefill(self.tokens[:-1])
        drafter.prefill(self.tokens, self.features)

    def __enter__(self) -> Walk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drafter.release()

    def propose(self, limit: int = MANY) -> Draft:
        """The drafter's guesses."""
        return self.drafter.propose(limit)

    def commit(self, new: list[int]) -> None:
        """Commits at least one token, whatever was proposed, with the features that predict them."""
        tokens = torch.tensor(new, device=self.target.device)
        _, features = self.target.extend(torch.cat([self.tokens[-1:], tokens[:-1]]))
        self.drafter.commit(tokens, features)
        self.tokens = torch.cat([self.tokens, tokens])
        self.features = torch.cat([self.features, features])

    def afresh(self, drafter: Drafter) -> list[int]:
        """What another drafter proposes when it is prefilled with this text."""
        drafter.prefill(self.tokens, self.features)
        guesses = ids(drafter.propose(MANY))
        drafter.release()
        return guesses


def ids(draft: Draft) -> list[int]:
    """The guessed ids."""
    guesses: list[int] = draft.tokens.tolist()
    return guesses


Verdict = Callable[[list[int], random.Random], list[int]]
"""The tokens that are committed after some guesses."""


def all_kept(guesses: list[int], dice: random.Random) -> list[int]:
    """Every guess and one more token."""
    return [*guesses, dice.randrange(ALPHABET)]


def none_kept(guesses: list[int], dice: random.Random) -> list[int]:
    """One token that is not the first guess."""
    return [dice.choice([token for token in range(ALPHABET) if token not in guesses[:1]])]


def some_kept(guesses: list[int], dice: random.Random) -> list[int]:
    """A random number of guesses and then another token."""
    kept = dice.randrange(len(guesses) + 1)
    return guesses[:kept] + none_kept(guesses[kept:], dice)


def other_text(guesses: list[int], dice: random.Random) -> list[int]:
    """One to five tokens that care nothing for the guesses."""
    return [dice.randrange(ALPHABET) for _ in range(dice.randrange(1, 6))]


def told(drafter: Drafter, target: TargetModel, prompt: list[int], rounds: int = 4) -> list[list[int]]:
    """The guesses of a few rounds, some of them kept; the drafter is released at the end."""
    dice, guesses = random.Random(0), []
    with Walk(drafter, target, prompt) as walk:
        for _ in range(rounds):
            guesses.append(ids(walk.propose()))
            walk.commit(some_kept(guesses[-1], dice))
    return guesses


def reply(drafter: Drafter, target: TargetModel, prompt: list[int], count: int) -> Reply:
    """A greedy reply through the engine's own loop."""
    tokens = torch.tensor(prompt, device=target.device)
    return decode(target, drafter, tokens, sampler(target), Clock(target.device), max_new_tokens=count)


def plain(target: TargetModel, prompt: list[int], count: int) -> list[int]:
    """`count` greedy tokens, one forward each, without the engine's loop."""
    target.begin(())
    logits, _ = target.prefill(torch.tensor(prompt, device=target.device))
    tokens = [int(logits.argmax())]
    while len(tokens) < count:
        logits, _ = target.extend(torch.tensor(tokens[-1:], device=target.device))
        tokens.append(int(logits.argmax()))
    return tokens


@contextmanager
def stopping_at(target: TargetModel, token: int) -> Iterator[None]:
    """Within, `token` ends the target's replies."""
    before, target.stop_ids = target.stop_ids, frozenset([token])
    try:
        yield
    finally:
        target.stop_ids = before
