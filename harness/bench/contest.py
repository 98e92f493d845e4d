"""Contenders answer the same prompts in turns: pace, acceptance length, and where their replies differ."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply. Times in milliseconds; None where a contender does not tell."""

    ids: tuple[int, ...]
    wall_ms: float
    """Prefill and decoding."""
    decode_ms: float | None = None
    """Decoding alone: every token but the first."""
    emitted: int | None = None
    """Tokens that came out of the forwards below."""
    forwards: int | None = None
    """Forwards of the target that could accept drafts."""


Contender = Callable[[torch.Tensor], Answer]
"""Answers prompt ids int64 [n]."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A reply that is not the first contender's: the prompt's index, and the first position that differs."""

    contender: str
    prompt: int
    position: int


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender over all prompts, a figure for each repeat: wall milliseconds a token, decoding's
    milliseconds a token after the first, and the pooled acceptance length of all repeats."""

    name: str
    paces: tuple[float, ...]
    decode_paces: tuple[float, ...] | None
    acceptance_length: float | None

    @property
    def pace(self) -> float | None:
        """Median milliseconds a token; None where no prompt's replies agree."""
        return statistics.median(self.paces) if self.paces else None


@dataclass(frozen=True, slots=True)
class Contest:
    """What came of it; the first contender's replies are the ones that the others' are held against."""

    title: str
    standings: tuple[Standing, ...]
    differences: tuple[Difference, ...]
    """Figures are of the prompts that these leave out."""

    def ratio(self, slow: str, fast: str) -> float | None:
        """Median over the repeats of one contender's time a token over another's: above 1 where `fast` is.
        None where every prompt has replies that differ."""
        paces = {one.name: one.paces for one in self.standings}
        found = [a / b for a, b in zip(paces[slow], paces[fast], strict=True)]
        return round(statistics.median(found), 3) if found else None

    def lines(self) -> list[str]:
        """The table: a heading, a line a contender, a line a difference."""
        first = self.standings[0].name
        head = f"{'':<30}{'tokens/s':>9}{'ms a token':>12}{'range':>17}{'accepted':>10}{'times ours':>12}"
        return [self.title, head, *(self._line(one, first) for one in self.standings), *self._differing()]

    def _line(self, one: Standing, first: str) -> str:
        pace, ratio = one.pace, self.ratio(one.name, first)
        if pace is None or ratio is None:
            return f"  {one.name:<28}no prompt on which the replies agree"
        spread = f"{min(one.paces):.1f} to {max(one.paces):.1f}"
        length = "-" if one.acceptance_length is None else f"{one.acceptance_length:.2f}"
        figures = f"{1e3 / pace:9.1f}{pace:12.1f}{spread:>17}{length:>10}"
        return f"  {one.name:<28}{figures}{ratio:12.2f}"

    def _differing(self) -> list[str]:
        first = self.standings[0].name
        return [
            f"  differs: {one.contender}, prompt {one.prompt}, from {first!r} at token {one.position}"
            for one in self.differences
        ]


def contest(
    title: str, contenders: dict[str, Contender], prompts: Sequence[torch.Tensor], repeats: int
) -> Contest:
    """Every contender answers every prompt `repeats` times, in an order drawn anew each time, after an
    uncounted answer to the first prompt. A prompt to which the replies differ has no figure: other tokens may
    be more or fewer, and easier or harder to guess."""
    dice, answers = random.Random(0), {name: [] for name in contenders}
    for contender in contenders.values():
        contender(prompts[0])
    for _ in range(repeats):
        for ids in prompts:
            for name in dice.sample(list(contenders), len(contenders)):
                answers[name].append(contenders[name](ids))
    first, *others = answers
    found = [one for name in others for one in differences(name, answers[first], answers[name], len(prompts))]
    kept = sorted(set(range(len(prompts))) - {one.prompt for one in found})
    standings = tuple(standing(name, own, len(prompts), kept) for name, own in answers.items())
    tokens = sum(len(answers[first][index].ids) for index in kept)
    heading = f"{title}: {len(kept)} of {len(prompts)} prompts, {tokens} tokens, {repeats} repeats"
    return Contest(heading, standings, tuple(dict.fromkeys(found)))


def standing(name: str, answers: Sequence[Answer], prompts: int, kept: Sequence[int]) -> Standing:
    """One contender's answers, `prompts` to a repeat, as its figures of the `kept` ones."""
    starts = range(0, len(answers), prompts) if kept else range(0)
    repeats = [[answers[start + index] for index in kept] for start in starts]
    answers = [one for own in repeats for one in own]
    paces = tuple(sum(one.wall_ms for one in own) / sum(len(one.ids) for one in own) for own in repeats)
    forwards = _total([one.forwards for one in answers])
    emitted = _total([one.emitted for one in answers])
    length = emitted / forwards if forwards and emitted is not None else None
    return Standing(name, paces, _decode_paces(repeats), length)


def _decode_paces(repeats: Sequence[Sequence[Answer]]) -> tuple[float, ...] | None:
    found = []
    for own in repeats:
        decode_ms, tokens = _total([one.decode_ms for one in own]), sum(len(one.ids) - 1 for one in own)
        if decode_ms is None or not tokens:
            return None
        found.append(decode_ms / tokens)
    return tuple(found)


def _total(told: Sequence[float | None]) -> float | None:
    """The sum, or None where one is missing."""
    return None if None in told else sum(one for one in told if one is not None)


def differences(
    name: str, expected: Sequence[Answer], found: Sequence[Answer], prompts: int
) -> list[Difference]:
    """Where replies part, one for each that does; a reply that only ends earlier parts at its end."""
    parted = []
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one.ids != other.ids:
            pairs = enumerate(zip(one.ids, other.ids, strict=False))
            shorter = min(len(one.ids), len(other.ids))
            position = next((i for i, (a, b) in pairs if a != b), shorter)
            parted.append(Difference(name, index % prompts, position))
    return parted
