"""Choosing tokens and judging drafts: one exact rule for every drafter.

The acceptance rule is that of Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding" (arXiv 2211.17192, algorithm 1) and Chen et al. (arXiv 2302.01318, theorem 1): a token drawn from
q is kept with probability min(1, p/q); the first that is not is replaced by a draw from norm(max(0, p-q)).
A certain guess is the case where q is a point mass: kept with probability p, replaced by p without it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard.record.records import Sampling


class Verdict(NamedTuple):
    """What the target makes of a draft: `hits` guesses kept, then one token of its own.

    `tokens` int64 [hits + 1] on the target's device, `ids` the same on the host.
    """

    tokens: Tensor
    ids: list[int]
    hits: int

    @classmethod
    def of(cls, tokens: Tensor, hits: int) -> Verdict:
        """The same with the ids read from the device."""
        return cls(tokens, tokens.tolist(), hits)


class Randomness:
    """A seeded stream of uniform numbers; every number is used once."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device

    def uniform(self, count: int) -> Tensor:
        """float64 [count] in [0, 1)."""
        return torch.rand(count, generator=self._generator, dtype=torch.float64, device=self._device)


class Sampler:
    """The run's sampling settings applied to logits, on the drafter's side and on the target's."""

    def __init__(self, settings: Sampling, randomness: Randomness) -> None:
        self.settings = settings
        self._randomness = randomness

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.settings.temperature == 0

    def restart(self, randomness: Randomness) -> None:
        """Draws from another stream from now on; one stream a reply makes a reply repeatable by itself."""
        self._randomness = randomness

    def probabilities(self, logits: Tensor) -> Tensor:
        """float32 [n, V]: softmax after temperature, then top-k, then top-p. Not for greedy."""
        scaled = logits.float()
        # Shifted first: divided by a tiny temperature, all but the largest may become infinite.
        scaled = (scaled - scaled.amax(dim=-1, keepdim=True)) / self.settings.temperature
        if self.settings.top_k is not None:
            scaled = _keep_top_k(scaled, self.settings.top_k)
        if self.settings.top_p is not None and self.settings.top_p < 1:
            scaled = _keep_top_p(scaled, self.settings.top_p)
        return torch.softmax(scaled, dim=-1)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens int64 [n] for logits [n, V] and the distributions they were drawn from (None: greedy)."""
        if self.greedy:
            return likeliest(logits), None
        probs = self.probabilities(logits)
        return self._choose(probs), probs

    def uniform(self, count: int) -> Tensor:
        """float64 [count] in [0, 1): what the next `count` draws would be made by."""
        return self._randomness.uniform(count)

    def draw_by(self, numbers: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """`draw` by the given numbers, float64 [n]. Not for greedy."""
        probs = self.probabilities(logits)
        return _at(numbers, probs), probs

    def verify(self, logits: Tensor, draft: Draft) -> Verdict:
        """Judges K guesses by the target's logits [K+1, V]; row i is what the target says after i guesses."""
        if self.greedy:
            return _greedy_verdict(likeliest(logits), draft.tokens)
        probs = self.probabilities(logits)
        hits = _leading(self._keeps(probs, draft))
        last = self._choose(_replacement(probs, draft, hits)[None])
        return Verdict.of(torch.cat([draft.tokens[:hits], last]), hits)

    def _keeps(self, probs: Tensor, draft: Draft) -> Tensor:
        """bool [K]: u < p/q for each guess, written without the division."""
        guessed = draft.tokens[:, None]
        target = probs[:-1].gather(1, guessed)[:, 0].double()
        own = (
            torch.ones_like(target) if draft.probs is None else draft.probs.gather(1, guessed)[:, 0].double()
        )
        return self.uniform(len(target)) * own < target

    def _choose(self, probs: Tensor) -> Tensor:
        """One index a row of probs [n, V]: int64 [n]."""
        return _at(self.uniform(len(probs)), probs)


def _at(numbers: Tensor, probs: Tensor) -> Tensor:
    """One index a row of probs [n, V] by inverting its cumulative sum at `numbers` float64 [n]: int64 [n]."""
    cumulative = probs.double().cumsum(dim=-1)
    points = numbers[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)


def likeliest(logits: Tensor) -> Tensor:
    """The first of the largest of each row of logits [n, V]: int64 [n]."""
    if logits.device.type == "cpu" and logits.dtype is not torch.float32:
        # The same index: PyTorch's argmax goes through numbers of this width one by one.
        return logits.max(dim=-1).indices
    return logits.argmax(dim=-1)


def _greedy_verdict(own: Tensor, guesses: Tensor) -> Verdict:
    """`own` int64 [K+1] is what the target says. Both come to the host in one transfer."""
    both = (torch.cat([own, guesses]) if len(guesses) else own).tolist()
    ids, hits = both[: len(own)], 0
    while hits < len(guesses) and ids[hits] == both[len(own) + hits]:
        hits += 1
    return Verdict(own[: hits + 1], ids[: hits + 1], hits)


def _replacement(probs: Tensor, draft: Draft, hits: int) -> Tensor:
    """The law [V] of the token after `hits` kept guesses, up to a factor: p after all, else max(0, p - q)."""
    target = probs[hits]
    if hits == len(draft.tokens):
        return target
    if draft.probs is None:
        rest = target.clone()
        rest[draft.tokens[hits]] = 0
    else:
        rest = (target - draft.probs[hits]).clamp_(min=0)
    return torch.where(rest.sum() > 0, rest, target)


def _leading(flags: Tensor) -> int:
    """How many flags are true before the first that is not."""
    return int(flags.long().cumprod(0).sum())


def _keep_top_k(logits: Tensor, k: int) -> Tensor:
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def _keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of likeliest tokens whose probability reaches p; the likeliest always stays."""
    ordered, order = logits.sort(dim=-1, descending=True)
    before = torch.softmax(ordered, dim=-1).cumsum(dim=-1) - torch.softmax(ordered, dim=-1)
    ordered = ordered.masked_fill(before >= p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, order, ordered)
