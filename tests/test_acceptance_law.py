"""The acceptance rule proved by enumeration: what is emitted has exactly the target's law."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import enumeration as en
from draftboard.drafter import Draft
from draftboard.measure.sampling import Randomness, Sampler, Verdict
from draftboard.record.records import Sampling

CPU = torch.device("cpu")
V, K = 5, 2
ONE = Sampling(temperature=1.0)
SETTINGS = {
    "temperature-1": ONE,
    "temperature-0.6": Sampling(temperature=0.6),
    "top-k": Sampling(temperature=1.0, top_k=3),
    "top-k-top-p": Sampling(temperature=1.2, top_k=4, top_p=0.9),
    "greedy": Sampling(),
}


def sampler(settings: Sampling = ONE, seed: int = 0) -> Sampler:
    return Sampler(settings, Randomness(seed, CPU))


def target_rows(text: tuple[int, ...], drafted: tuple[int, ...]) -> Tensor:
    return torch.stack([en.table(0, text + drafted[:i], V) for i in range(len(drafted) + 1)])


def law_of_round(judge: Sampler, text: tuple[int, ...], drafted: tuple[int, ...], certain: bool) -> en.Law:
    """What one verification of `drafted` after `text` emits; a drawn draft has the drafter's own laws."""
    rows = target_rows(text, drafted)
    p = [en.warped(row, judge.settings) for row in rows]
    if certain:
        q, probs = list(np.eye(V)[list(drafted)]), None
    else:
        q = draft_laws(text, drafted)
        probs = torch.tensor(np.reshape(q, (len(drafted), V)), dtype=torch.float32)
    corners = en.ALL_CORNERS if judge.settings is ONE and len(drafted) == K else en.DIAGONAL
    return en.verdict_law(
        judge,
        rows,
        Draft(torch.tensor(drafted, dtype=torch.int64), probs),
        en.round_cells(p, q, drafted),
        corners,
    )


def draft_laws(text: tuple[int, ...], drafted: tuple[int, ...]) -> list[en.Vector]:
    """The drafter's law before each guess; it never guesses the last id."""
    laws = [en.warped(en.table(1, text + drafted[:i], V), ONE) for i in range(len(drafted))]
    return [np.append(law[:-1], 0.0) / law[:-1].sum() for law in laws]


def weighted_drafts(text: tuple[int, ...], count: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every draft that may be drawn and how likely it is."""
    drafts = product(range(V - 1), repeat=count)
    return [(en.likelihood(draft_laws(text, d), d), d) for d in drafts]


@cache
def law_of_text(judge: Sampler, text: tuple[int, ...], left: int, certain: bool) -> en.Law:
    """The law of the next `left` tokens, round after round, each drafting as much as fits."""
    if certain:
        return continued(judge, text, law_of_round(judge, text, text[-1:] * (left - 1), True), left, True)
    rounds = ((w, law_of_round(judge, text, d, False)) for w, d in weighted_drafts(text, left - 1))
    return continued(judge, text, en.mixed(rounds), left, False)


def continued(judge: Sampler, text: tuple[int, ...], law: en.Law, left: int, certain: bool) -> en.Law:
    """A round's law, with what later rounds make of the texts that are still short of `left` tokens."""
    parts = []
    for tokens, probability in law.items():
        missing = left - len(tokens)
        rest = law_of_text(judge, text + tokens, missing, certain) if missing else {(): 1.0}
        parts.append((probability, {tokens + more: share for more, share in rest.items()}))
    return en.mixed(parts)


def errors(judge: Sampler, certain: bool) -> Iterator[float]:
    """The largest error of a probability of the first K+1 tokens, for each certain draft or drawn ones."""
    truth = en.true_law(judge.settings, V, K + 1)
    if certain:
        rounds = (law_of_round(judge, (), d, True) for d in product(range(V), repeat=K))
        laws = (continued(judge, (), law, K + 1, True) for law in rounds)
    else:
        laws = iter([law_of_text(judge, (), K + 1, False)])
    return (en.distance(law, truth) for law in laws)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("certain", [True, False], ids=["certain", "drawn"])
def test_law_of_the_text_is_the_targets(settings: Sampling, certain: bool) -> None:
    assert max(errors(sampler(settings), certain)) < 1e-6


class Faulty(Sampler):
    """The same rule in parts that a fault can replace; without one it is right."""

    def verify(self, logits: Tensor, draft: Draft) -> Verdict:
        probs = torch.eye(V)[logits.argmax(-1)] if self.greedy else self.probabilities(logits)
        kept = self.keeps(logits, probs, draft)
        hits = self.count(kept)
        last = self._choose(self.rest(probs, draft, hits)[None])
        return Verdict.of(torch.cat([draft.tokens[:hits], last]), hits)

    def keeps(self, logits: Tensor, probs: Tensor, draft: Draft) -> Tensor:
        return self._keeps(probs, draft)

    def count(self, kept: Tensor) -> int:
        return int(kept.long().cumprod(0).sum())

    def rest(self, probs: Tensor, draft: Draft, hits: int) -> Tensor:
        if hits == len(draft.tokens):
            return probs[hits]
        q = torch.eye(V)[draft.tokens[hits]] if draft.probs is None else draft.probs[hits]
        rest = (probs[hits] - q).clamp(min=0)
        return rest if rest.sum() > 0 else probs[hits]


class RawSoftmaxWhenGreedy(Faulty):
    def keeps(self, logits: Tensor, probs: Tensor, draft: Draft) -> Tensor:
        return self._keeps(torch.softmax(logits, -1), draft)


class CountsLaterHits(Faulty):
    def count(self, kept: Tensor) -> int:
        return int(kept.sum())


class FirstGuessUnchecked(Faulty):
    def count(self, kept: Tensor) -> int:
        return min(1, len(kept)) + super().count(kept[1:])


class KeepsAll(Faulty):
    def count(self, kept: Tensor) -> int:
        return len(kept)


class DoesNotSubtract(Faulty):
    def rest(self, probs: Tensor, draft: Draft, hits: int) -> Tensor:
        return probs[hits]


class OnlyZeroesTheRejected(Faulty):
    def rest(self, probs: Tensor, draft: Draft, hits: int) -> Tensor:
        rest = probs[hits].clone()
        rest[draft.tokens[hits:][:1]] = 0
        return rest if rest.sum() > 0 else probs[hits]


class BonusFromTheRowBefore(Faulty):
    def rest(self, probs: Tensor, draft: Draft, hits: int) -> Tensor:
        return probs[hits - 1] if hits == len(draft.tokens) else super().rest(probs, draft, hits)


class CorrectionFromTheNextRow(Faulty):
    def rest(self, probs: Tensor, draft: Draft, hits: int) -> Tensor:
        return probs[min(hits + 1, len(draft.tokens))]


class ReusesTheNumber(Faulty):
    def keeps(self, logits: Tensor, probs: Tensor, draft: Draft) -> Tensor:
        script = self._randomness
        assert isinstance(script, en.Script)
        used = script.numbers[:1]
        kept = self._keeps(probs, draft)
        script.numbers = used
        return kept


FAULTS: list[tuple[type[Sampler], Sampling, bool]] = [
    (RawSoftmaxWhenGreedy, Sampling(), True),
    (CountsLaterHits, ONE, False),
    (FirstGuessUnchecked, ONE, True),
    (KeepsAll, ONE, True),
    (DoesNotSubtract, ONE, True),
    (DoesNotSubtract, ONE, False),
    (OnlyZeroesTheRejected, ONE, False),
    (BonusFromTheRowBefore, ONE, True),
    (BonusFromTheRowBefore, ONE, False),
    (CorrectionFromTheNextRow, ONE, True),
    (CorrectionFromTheNextRow, ONE, False),
    (ReusesTheNumber, ONE, True),
    (ReusesTheNumber, ONE, False),
]


@pytest.mark.parametrize(("fault", "settings", "certain"), FAULTS)
def test_law_fails_for_a_wrong_rule(fault: type[Sampler], settings: Sampling, certain: bool) -> None:
    assert any(error > 1e-2 for error in errors(fault(settings, en.Script([])), certain))


def test_law_holds_for_the_parts_that_the_faults_replace() -> None:
    assert max(errors(Faulty(ONE, en.Script([])), False)) < 1e-6
