"""The law of a round at temperature 1 is the target's with every drafter, exactly, and with no wrong one.

Every draft that may be drawn and every verdict on it is enumerated (`laws`), on a vocabulary of six.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import enumeration as en
import laws
from draftboard.drafter import Draft
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from shipped import FAMILIES, GUESSING, MODULES, maker
from tiny import tiny_model

V, K = 6, 2
ONE = Sampling(temperature=1.0)
COOL = Sampling(temperature=0.7)
SETTINGS = {
    "temperature-1": ONE,
    "temperature-0.7": COOL,
    "top-k": Sampling(temperature=1.0, top_k=3),
    "top-k-top-p": Sampling(temperature=1.2, top_k=5, top_p=0.9),
}
TEXT = (1, 2, 0, 1, 2, 0)
"""In it the lookup finds what followed."""


def stage(
    name: str,
    judge: laws.Spied,
    family: str = "llama",
    text: tuple[int, ...] = TEXT,
    k: int = K,
    **fault: laws.Change,
) -> laws.Stage:
    model = tiny_model(family, vocab_size=V)
    target = TargetModel(model, id="six-words", max_context=64, stop_ids=frozenset())
    return laws.Stage(maker(name, k), target, judge, text, k, **fault)


@cache
def conditional(family: str, text: tuple[int, ...], settings: Sampling) -> laws.Conditional:
    return laws.conditional(tiny_model(family, vocab_size=V), text, settings)


def error(played: laws.Stage, family: str = "llama") -> float:
    """The largest error of a probability of the first K+1 tokens."""
    own = conditional(family, tuple(played.text.tolist()), played.judge.settings)
    found, count = laws.emitted(played), played.limit + 1
    return en.distance(laws.completed(found, own, count), laws.completed({(): 1.0}, own, count))


@pytest.mark.parametrize("name", MODULES)
def test_law_of_a_round_is_the_targets(name: str) -> None:
    played = stage(name, laws.Spied(ONE))
    assert len(played.draft(laws.FILLER).tokens) == (K if name in GUESSING else 0)
    assert error(played) < 1e-6


@pytest.mark.proof
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("text", [TEXT, (3, 5, 4, 0)])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MODULES)
def test_law_of_any_round_is_the_targets(
    name: str, family: str, k: int, text: tuple[int, ...], settings: Sampling
) -> None:
    assert error(stage(name, laws.Spied(settings), family, text, k), family) < 1e-6


@pytest.mark.proof
@pytest.mark.parametrize("name", MODULES)
def test_law_of_a_round_of_three_guesses_is_the_targets(name: str) -> None:
    assert error(stage(name, laws.Spied(ONE), k=3)) < 1e-6


class Likeliest(laws.Spied):
    """Drafts the argmax and hands over the full softmax."""

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.argmax(-1), self.probabilities(logits)


class HandsOverUntempered(laws.Spied):
    """Draws at the run's temperature and hands over the law at temperature 1."""

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return super().draw(logits)[0], torch.softmax(logits, dim=-1)


class DrawsUntempered(laws.Spied):
    """Draws at temperature 1 and hands over the law at the run's temperature."""

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._choose(torch.softmax(logits, dim=-1)), self.probabilities(logits)


WRONG_DRAWS = {
    "full softmax for an argmax": Likeliest(ONE),
    "law without the temperature": HandsOverUntempered(COOL),
    "draw without the temperature": DrawsUntempered(COOL),
}
DRAWING = [name for name in GUESSING if stage(name, laws.Spied(ONE)).draft(laws.FILLER).probs is not None]


@pytest.mark.parametrize("fault", WRONG_DRAWS)
@pytest.mark.parametrize("name", DRAWING)
def test_law_fails_for_a_wrong_draw(name: str, fault: str) -> None:
    assert error(stage(name, WRONG_DRAWS[fault], k=1)) > 1e-3


def uncorrected(drafter: Any, draft: Draft) -> Draft:
    """The law of the block's own logits, without the Markov head that the tokens were drawn with."""
    own = drafter.vocabulary.logits(drafter.backbone.block())
    return replace(draft, probs=torch.softmax(own, dim=-1)[: len(draft.tokens)])


def unscattered(drafter: Any, draft: Draft) -> Draft:
    """The law at the drafter's own ids, not at the target's."""
    assert draft.probs is not None
    known, probs = drafter.vocabulary.target_ids, torch.zeros_like(draft.probs)
    probs[:, : len(known)] = draft.probs[:, known]
    return replace(draft, probs=probs)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("name", "fault"), [("dspark", uncorrected), ("eagle3", unscattered)])
def test_law_fails_for_a_wrong_q(name: str, fault: laws.Change) -> None:
    assert error(stage(name, laws.Spied(ONE), k=1, change=fault)) > 1e-3
