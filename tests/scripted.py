"""A drafter whose guesses a test dictates, and which remembers all it was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftboard.drafter import NO_WEIGHTS, Draft

Script = Callable[[list[int]], Sequence[int]]
"""The guesses for a text: all committed ids, the prompt's included."""


class Scripted:
    """Proposes `script(committed ids)`, cut to the limit unless `obedient` is False."""

    weights = NO_WEIGHTS

    def __init__(
        self, script: Script, *, k: int = 4, taps: tuple[int, ...] = (), obedient: bool = True
    ) -> None:
        self.script, self.num_speculative_tokens, self.taps, self.obedient = script, k, taps, obedient
        self.committed: list[int] = []
        self.features: list[Tensor] = []
        self.limits: list[int] = []
        self.commits: list[list[int]] = []
        self.replies = 0

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        self.committed, self.features = tokens.tolist(), [features]

    def propose(self, limit: int) -> Draft:
        self.limits.append(limit)
        guesses = list(self.script(self.committed))
        return Draft(torch.tensor(guesses[:limit] if self.obedient else guesses, dtype=torch.int64))

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        self.commits.append(tokens.tolist())
        self.committed = self.committed + tokens.tolist()
        self.features.append(features)

    def release(self) -> None:
        self.replies += 1


def always(*guesses: int) -> Script:
    """The same guesses in every round."""
    return lambda text: guesses


def oracle(whole: Sequence[int], k: int) -> Script:
    """What really comes next, from the prompt and reply as known: every guess is right."""
    return lambda text: whole[len(text) : len(text) + k]


def wrong_at(place: int, whole: Sequence[int], k: int, vocab: int) -> Script:
    """The truth but for guess number `place` (from 0) of each round, which is the next id instead."""

    def script(text: list[int]) -> list[int]:
        truth = list(whole[len(text) : len(text) + k])
        return [(token + 1) % vocab if i == place else token for i, token in enumerate(truth)]

    return script
