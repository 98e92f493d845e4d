"""Exact laws of sampled text: every path of a sampler, found by scripting its only randomness.

What a sampler returns is piecewise constant in the uniform numbers it uses. The breakpoints are computed
here in float64 from p and q alone; the sampler is then asked at both ends of every cell between them, and
each answer counts with the cell's width. A sampler that has its breakpoints elsewhere answers differently at
two ends of some cell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from draftboard.drafter import Draft
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling

Vector = NDArray[np.float64]
Law = dict[tuple[int, ...], float]

MARGIN = 3e-7
"""How far inside a cell its ends are tried: what rounding p and q to float32 may move p/q."""


class Script(Randomness):
    """Uniform numbers dictated by a test."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = list(numbers)

    def uniform(self, count: int) -> torch.Tensor:
        taken, self.numbers = self.numbers[:count], self.numbers[count:]
        assert len(taken) == count, "the sampler asked for more numbers than its rule needs"
        return torch.tensor(taken, dtype=torch.float64)


class End(NamedTuple):
    """A stretch of one uniform number, and how far rounding may move its ends."""

    low: float
    high: float
    margin: float = MARGIN

    def inside(self) -> tuple[float, float]:
        """Both ends, a little inside."""
        margin = min(self.margin, (self.high - self.low) / 4)
        return self.low + margin, self.high - margin


class Cell(NamedTuple):
    """A box of uniform numbers in which the right rule emits `tokens`."""

    ends: tuple[End, ...]
    tokens: tuple[int, ...]

    @property
    def width(self) -> float:
        return math.prod(end.high - end.low for end in self.ends)


def warped(logits: torch.Tensor, settings: Sampling) -> Vector:
    """The target's law [V] after temperature, top-k and top-p: float64, written apart from the sampler."""
    raw = logits.double().numpy()
    if settings.temperature == 0:
        return np.eye(len(raw))[raw.argmax()]
    law = np.exp((raw - raw.max()) / settings.temperature)
    if settings.top_k is not None:
        law[raw < np.sort(raw)[::-1][: settings.top_k][-1]] = 0
    law /= law.sum()
    if settings.top_p is not None:
        order = np.argsort(-law, kind="stable")
        law[order[np.searchsorted(law[order].cumsum(), settings.top_p) + 1 :]] = 0
    return law / law.sum()


def pieces(law: Vector) -> Iterator[tuple[End, int]]:
    """The stretch of [0, 1) that inverting the cumulative sum of `law` maps to each index; at any scale."""
    edges = [0.0, *(law.cumsum() / law.sum()).tolist()]
    margin = MARGIN / float(law.sum())
    return ((End(edges[i], edges[i + 1], margin), i) for i in range(len(law)) if law[i] > 0)


def replacement(p: Vector, q: Vector) -> Vector:
    """The law, up to a factor, of the token that stands in for a rejected draw from q."""
    rest = np.maximum(p - q, 0)
    return rest if rest.sum() > 0 else p


def round_cells(p: Sequence[Vector], q: Sequence[Vector], drafted: Sequence[int]) -> Iterator[Cell]:
    """Every cell of one verification: K acceptance numbers, then the one that picks the last token."""
    keep = [min(1.0, float(pi[d] / qi[d])) for pi, qi, d in zip(p, q, drafted, strict=False)]
    for flags in product((True, False), repeat=len(drafted)):
        ends = tuple(End(0.0, k) if flag else End(k, 1.0) for k, flag in zip(keep, flags, strict=True))
        if any(end.low >= end.high for end in ends):
            continue
        hits = flags.index(False) if False in flags else len(flags)
        law = p[hits] if hits == len(drafted) else replacement(p[hits], q[hits])
        for piece, token in pieces(law):
            yield Cell((*ends, piece), (*drafted[:hits], token))


Corners = Callable[..., Iterable[tuple[float, ...]]]
ALL_CORNERS: Corners = product
DIAGONAL: Corners = zip


@torch.inference_mode()
def verdict_law(
    sampler: Sampler, logits: torch.Tensor, draft: Draft, cells: Iterable[Cell], corners: Corners = DIAGONAL
) -> Law:
    """What `sampler` really emits for one draft: its tokens' law, measured on `cells`."""
    law: Law = defaultdict(float)
    for cell in cells:
        tries = list(corners(*(end.inside() for end in cell.ends)))
        for numbers in tries:
            sampler.restart(Script(numbers))
            tokens = tuple(sampler.verify(logits, draft).tokens.tolist())
            law[tokens] += cell.width / len(tries)
    return law


def mixed(laws: Iterable[tuple[float, Law]]) -> Law:
    """Laws joined with their weights."""
    total: Law = defaultdict(float)
    for weight, law in laws:
        for tokens, probability in law.items():
            total[tokens] += weight * probability
    return total


def leading(law: Law, count: int) -> Law:
    """The law of the first `count` tokens, or of all where there are fewer."""
    return mixed((probability, {tokens[:count]: 1.0}) for tokens, probability in law.items())


def distance(one: Law, other: Law) -> float:
    """The largest difference of a probability."""
    return max(abs(one.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in {*one, *other})


def table(kind: int, text: tuple[int, ...], size: int) -> torch.Tensor:
    """Logits [size] after a text: a language model that is all memory. `kind` tells target from drafter."""
    seed = 1 + kind + 7 * sum((token + 1) * 11**place for place, token in enumerate(text))
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 1.2


def likelihood(laws: Iterable[Sequence[float] | Vector], tokens: tuple[int, ...]) -> float:
    """The probability of `tokens`, each under its own law."""
    return math.prod(float(law[token]) for law, token in zip(laws, tokens, strict=True))


def true_law(settings: Sampling, size: int, count: int) -> Law:
    """What the target of `table` alone would say: the product of its conditional laws."""
    law = cache(lambda text: warped(table(0, text, size), settings))
    texts = product(range(size), repeat=count)
    return {text: likelihood([law(text[:i]) for i in range(count)], text) for text in texts}
