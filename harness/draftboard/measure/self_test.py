"""Is a checkpoint read by the conventions it was trained with? The right reading drafts best, by far.

A wrong tap, slot or norm loads without a word and only lowers acceptance. So every reading drafts at every
position of the target's own greedy replies, beside the same states; the target runs once. Readings are
compared prompt by prompt.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard.drafter import Drafter
from draftboard.errors import UserError
from draftboard.measure.inspection import Variation
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling

CLEARLY = 2.0
"""Standard errors over prompts by which the shipped reading must lead every other: about 95 %."""


@dataclass(frozen=True, slots=True)
class Told:
    """A prompt and the target's greedy reply: ids int64 [n + m], and the states that predicted ids[1:]."""

    ids: Tensor
    prompt: int
    features: dict[int, Tensor]
    """[n + m - 1, H] by tap."""

    def taps(self, taps: Sequence[int]) -> Tensor:
        """[n + m - 1, L, H]."""
        return torch.stack([self.features[tap] for tap in taps], dim=1)


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a reading drafted at every position, prompt by prompt, and how many leading drafts were right."""

    drafts: tuple[tuple[tuple[int, ...], ...], ...]
    hits: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> float:
        """Acceptance length, were a round to begin at every position."""
        every = [hit for prompt in self.hits for hit in prompt]
        return 1 + sum(every) / len(every)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reading's acceptance. `behind` is how far it trails the shipped one, `errors` the same in standard
    errors; None for the shipped reading, and for one that drafts exactly what that drafts."""

    name: str
    length: float
    behind: float | None = None
    errors: float | None = None
    shipped: bool = False

    @property
    def verdict(self) -> str:
        """In words."""
        if self.errors is None:
            return "shipped" if self.shipped else "the same drafts: these texts do not tell them apart"
        clearly = "clearly " if abs(self.errors) >= CLEARLY else "not clearly "
        return f"{clearly}{'better' if self.errors < 0 else 'worse'}"

    @property
    def distance(self) -> tuple[str, str]:
        """`behind` and `errors` in words."""
        return (
            "" if self.behind is None else f"{self.behind:.3f}",
            "" if self.errors is None else f"{self.errors:.1f}",
        )


def run(
    target: TargetModel, readings: Sequence[Variation], prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[Outcome, ...]:
    """The outcome of every reading, the first of which is the shipped one, on replies of `tokens` tokens.

    Raises UserError where fewer than two replies are longer than a draft.
    """
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    taps = sorted({tap for reading in readings for tap in reading.taps})
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern the shipped reading, and inspecting it told them
        most = readings[0].make(target, sampler).num_speculative_tokens
        told = [tell(target, prompt, taps, tokens) for prompt in prompts]
        told = [one for one in told if len(one.ids) - one.prompt > most + 1]
        if len(told) < 2:
            raise UserError(
                f"{len(told)} of {len(prompts)} replies are longer than a draft of {most};"
                " give more prompts or another task"
            )
        # One at a time: each has a copy of the weights.
        drafted = [draft_everywhere(reading.make(target, sampler), told, most) for reading in readings]
    return tuple(
        _outcome(reading.name, drafted[0], one) for reading, one in zip(readings, drafted, strict=True)
    )


def unbeaten(outcomes: Sequence[Outcome]) -> list[str]:
    """Names of the readings that the shipped one does not lead clearly."""
    return [one.name for one in outcomes if one.errors is not None and one.errors < CLEARLY]


def passed(outcomes: Sequence[Outcome]) -> bool:
    """Whether the shipped reading leads every other clearly, and there was one to lead."""
    return any(one.errors is not None for one in outcomes) and not unbeaten(outcomes)


def tell(target: TargetModel, prompt: Sequence[int], taps: Sequence[int], tokens: int) -> Told:
    """The target's greedy reply, at most `tokens` long, with its states."""
    target.begin(tuple(taps))
    ids = torch.tensor(list(prompt), device=target.device)
    logits, features = target.prefill(ids)
    parts = [features]
    for _ in range(tokens):
        ids = torch.cat([ids, logits[-1:].argmax(dim=-1)])
        if int(ids[-1]) in target.stop_ids:
            break
        logits, features = target.extend(ids[-1:])
        parts.append(features)
    states = torch.cat(parts)[: len(ids) - 1]
    return Told(ids, len(prompt), {tap: states[:, i] for i, tap in enumerate(taps)})


def draft_everywhere(drafter: Drafter, told: Sequence[Told], most: int) -> Drafted:
    """Drafts at every position that has `most` more tokens behind it, from what was committed before it."""
    found = [list(_rounds(drafter, one, most)) for one in told]
    drafts = tuple(tuple(draft for draft, _ in rounds) for rounds in found)
    return Drafted(drafts, tuple(tuple(hits for _, hits in rounds) for rounds in found))


def _rounds(drafter: Drafter, told: Told, most: int) -> list[tuple[tuple[int, ...], int]]:
    ids, features = told.ids, told.taps(drafter.taps)
    drafter.prefill(ids[: told.prompt + 1], features[: told.prompt])
    rounds = []
    for known in range(told.prompt + 1, len(ids) - most):
        tokens = drafter.propose(most).tokens
        right = tokens == ids[known : known + len(tokens)]
        rounds.append((tuple(tokens.tolist()), int(right.long().cumprod(0).sum())))
        drafter.commit(ids[known : known + 1], features[known - 1 : known])
    drafter.release()
    return rounds


def _outcome(name: str, shipped: Drafted, other: Drafted) -> Outcome:
    if other is shipped:
        return Outcome(name, other.length, shipped=True)
    if other.drafts == shipped.drafts:
        return Outcome(name, other.length)
    pairs = zip(shipped.hits, other.hits, strict=True)
    leads = [statistics.fmean(a) - statistics.fmean(b) for a, b in pairs]
    mean, error = statistics.fmean(leads), statistics.stdev(leads) / len(leads) ** 0.5
    errors = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    return Outcome(name, other.length, shipped.length - other.length, errors)
