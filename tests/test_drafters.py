"""Every drafter in the folder keeps the contract, and the contract notices every drafter that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard.errors import UserError
from draftboard.measure import contract, contract_drafts, contract_texts, plugins
from draftboard.measure.contract import ContractError, toy_target
from draftboard_drafters import draft_model
from example_drafter import Bigrams
from scripted import Scripted, always

PACKAGE = "draftboard_drafters"
EXAMPLE = str(Path(__file__).parent / "example_drafter.py")
NAMES = [*plugins.list_drafters(PACKAGE), EXAMPLE]
TARGETS = {family: toy_target(family) for family in ("llama", "qwen3")}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: Path(name).stem)
def test_keeps_the_contract(name: str) -> None:
    outcomes = list(contract.run_all(plugins.load(name, PACKAGE), TARGETS["llama"], {}))
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert len(outcomes) > len(contract.CHECKS)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: Path(name).stem)
def test_is_lossless_on_another_architecture(name: str) -> None:
    contract_texts.check_lossless(contract.maker(plugins.load(name, PACKAGE), {}), TARGETS["qwen3"])


@pytest.mark.parametrize("name", NAMES, ids=lambda name: Path(name).stem)
def test_the_card_is_filled_in(name: str) -> None:
    card = plugins.load(name, PACKAGE).CARD
    assert card.label and card.mechanism and card.needs and card.when_to_use
    assert all(claim.text and claim.source for claim in card.claims)


def test_one_drafter_is_the_baseline_and_the_places_in_the_table_differ() -> None:
    cards = [plugins.load(name, PACKAGE).CARD for name in plugins.list_drafters(PACKAGE)]
    assert [card.label for card in cards if card.baseline] == ["Plain decoding"]
    assert len({card.order for card in cards}) == len(cards)


Change = Callable[[Any, Draft], Draft]


def changed(change: Change) -> contract.Make:
    """The example drafter with its drafts changed before they are handed over."""

    class Changed(Bigrams):
        def propose(self, limit: int) -> Draft:
            return change(self, super().propose(limit))

    return lambda target, sampler: Changed(target, sampler, 4, 0.01)


def with_methods(**methods: Any) -> contract.Make:
    """The example drafter with some of its methods replaced."""
    kind: Any = type("Faulty", (Bigrams,), methods)
    return lambda target, sampler: kind(target, sampler, 4, 0.01)


def full_draft(self: Bigrams, limit: int) -> Draft:
    return Bigrams.propose(self, 4)


def one_even_at_zero(self: Bigrams, limit: int) -> Draft:
    return Bigrams.propose(self, max(limit, 1))


def remember(self: Bigrams, *ignored: Any) -> None:
    """A release that keeps the counts; `prefill` relies on it."""
    if not hasattr(self, "followers"):
        Bigrams.release(self)


def count_guesses(self: Bigrams, limit: int) -> Draft:
    draft = Bigrams.propose(self, limit)
    last = self.last
    self._count(torch.cat([last, draft.tokens]))
    self.last = last
    return draft


def forget_the_join(self: Bigrams, tokens: Tensor, features: Tensor) -> None:
    self._count(tokens)


def scribble(self: Bigrams, tokens: Tensor, features: Tensor) -> None:
    Bigrams.commit(self, tokens, features)
    self.last = self.last.clone()
    tokens.fill_(0)


def shuffle_by_seed(drafter: Any, draft: Draft) -> Draft:
    shift = int(drafter.sampler._randomness.uniform(1) * 8)
    return Draft((draft.tokens + shift) % 8)


def peek(drafter: Any, draft: Draft) -> Draft:
    logits, _ = drafter.target.extend(drafter.last)
    drafter.target.truncate(drafter.target.length - 1)
    return Draft(logits.argmax(-1))


def flatter(drafter: Any, draft: Draft) -> Draft:
    """Hands over the law at another temperature than it drew at."""
    if draft.probs is None:
        return draft
    return replace(draft, probs=torch.softmax(draft.probs.log() / 2, dim=-1))


def most_likely(drafter: Any, draft: Draft) -> Draft:
    """Takes the likeliest token and hands over the law as if it had drawn."""
    return draft if draft.probs is None else replace(draft, tokens=draft.probs.argmax(-1))


def on_probs(change: Callable[[Tensor], Tensor]) -> contract.Make:
    return changed(lambda _, d: d if d.probs is None else replace(d, probs=change(d.probs)))


def on_tokens(change: Callable[[Tensor], Tensor]) -> contract.Make:
    return changed(lambda _, draft: replace(draft, tokens=change(draft.tokens)))


FAULTS: dict[str, tuple[contract.Check, contract.Make, str]] = {
    "taps are a list": (contract_texts.check_declarations, with_methods(taps=[1]), "expected a tuple"),
    "a tap past the last layer": (contract_texts.check_declarations, with_methods(taps=(4,)), "-1 to 3"),
    "no weights": (contract_texts.check_declarations, with_methods(weights=None), "expected a Weights"),
    "K unknown": (
        contract_texts.check_declarations,
        lambda target, sampler: Bigrams(target, sampler, None, 0.01),  # type: ignore[arg-type]
        "expected a whole number",
    ),
    "limit ignored": (contract_texts.check_limit, with_methods(propose=full_draft), "at most"),
    "a guess at limit 0": (contract_texts.check_limit, with_methods(propose=one_even_at_zero), "at most 0"),
    "more than K": (
        contract_texts.check_limit,
        lambda target, sampler: Scripted(always(1, 1, 1), k=2),
        "at most 2 were allowed",
    ),
    "int32 ids": (contract_drafts.check_tensors, on_tokens(lambda t: t.int()), "expected int64"),
    "ids with a batch axis": (
        contract_drafts.check_tensors,
        on_tokens(lambda t: t[None]),
        "expected int64 [K]",
    ),
    "ids past the vocabulary": (contract_drafts.check_tensors, on_tokens(lambda t: t + 96), "does not have"),
    "filler ids": (contract_drafts.check_tensors, on_tokens(lambda t: t * 0 - 1), "[-1, -1, -1, -1]"),
    "confidence of another length": (
        contract_drafts.check_tensors,
        changed(lambda _, draft: replace(draft, confidence=torch.ones(2))),
        "confidence is float32 [2]",
    ),
    "a law at temperature 0": (
        contract_drafts.check_tensors,
        changed(lambda self, d: replace(d, probs=torch.eye(96)[d.tokens])),
        "temperature 0",
    ),
    "laws in float64": (contract_drafts.check_tensors, on_probs(lambda p: p.double()), "expected float32"),
    "laws of a smaller vocabulary": (contract_drafts.check_tensors, on_probs(lambda p: p[:, :90]), "[4, 96]"),
    "laws that are no laws": (contract_drafts.check_tensors, on_probs(lambda p: p * 0.9), "expected 1"),
    "negative probabilities": (
        contract_drafts.check_tensors,
        on_probs(lambda p: torch.cat([p[:, :1] - 1, p[:, 1:2] + 1, p[:, 2:]], dim=1)),
        "negative",
    ),
    "a guess its law rules out": (
        contract_drafts.check_tensors,
        changed(lambda _, d: d if d.probs is None else replace(d, probs=torch.eye(96)[(d.tokens + 1) % 96])),
        "probability 0",
    ),
    "guesses kept as if committed": (
        contract_texts.check_commits,
        with_methods(propose=count_guesses),
        "freshly prefilled",
    ),
    "a portion joined wrongly": (
        contract_texts.check_commits,
        with_methods(commit=forget_the_join),
        "freshly prefilled",
    ),
    "random at temperature 0": (contract_texts.check_determinism, changed(shuffle_by_seed), "and then"),
    "a trace of the last prompt": (
        contract_texts.check_release,
        with_methods(release=remember),
        "after another prompt",
    ),
    "a look at the target's logits": (contract_texts.check_view, changed(peek), "'extend'"),
    "committed ids overwritten": (
        contract_texts.check_lossless,
        with_methods(commit=scribble),
        "plain decoding",
    ),
    "ids overwritten before a stop": (
        contract_texts.check_stops,
        with_methods(commit=scribble),
        "stop token",
    ),
    "ids overwritten before a cap": (contract_texts.check_caps, with_methods(commit=scribble), "capped at"),
    "the law at another temperature": (contract_drafts.check_laws, changed(flatter), "more than their laws"),
    "the likeliest instead of a draw": (contract_drafts.check_laws, changed(most_likely), "likeliest token"),
    "drawn guesses without a law": (
        contract_drafts.check_laws,
        changed(lambda _, draft: Draft(draft.tokens)),
        "changed with the seed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_notices(fault: str) -> None:
    check, make, said = FAULTS[fault]
    with pytest.raises(ContractError) as caught:
        check(make, TARGETS["llama"])
    assert said in str(caught.value)


def test_every_check_has_a_fault_that_it_notices() -> None:
    assert {check for check, _, _ in FAULTS.values()} == {*contract.CHECKS, contract_texts.check_lossless}


class CutsTooLittle(draft_model.DraftModel):
    """Leaves a guess that was not kept in the cache."""

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        self.committed = torch.cat([self.committed, tokens])
        self.model.truncate(min(self.model.length, len(self.committed) - 1))
        self.drafted = self.none


class TrustsTheCount(draft_model.DraftModel):
    """Takes all but the last committed token for kept guesses without looking."""

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        self.drafted = torch.cat([tokens[:-1], self.none])[: len(self.drafted)]
        super().commit(tokens, features)


@pytest.mark.parametrize("kind", [CutsTooLittle, TrustsTheCount])
def test_the_contract_notices_a_draft_cache_that_is_not_rolled_back(kind: Any) -> None:
    def make(target: Any, sampler: Any) -> Any:
        sound: Any = draft_model.example(target, sampler)
        return kind(target, sampler, sound.model, 4, sound.weights)

    with pytest.raises(ContractError, match="freshly prefilled"):
        contract_texts.check_commits(make, TARGETS["llama"])


def module(**names: Any) -> ModuleType:
    made = ModuleType("made_up")
    made.__dict__.update(names)
    return made


def needs_a_file(target: Any, sampler: Any, *, path: str) -> Any:
    raise AssertionError("never built")


def test_a_module_that_can_be_neither_built_nor_exampled_fails() -> None:
    with pytest.raises(UserError, match="needs the option 'path' and has no example"):
        list(contract.run_all(module(build=needs_a_file), TARGETS["llama"], {}))


def test_an_example_stands_in_for_a_build_that_needs_more() -> None:
    def example(target: Any, sampler: Any, *, num_speculative_tokens: int = 2) -> Any:
        return Bigrams(target, sampler, num_speculative_tokens, 0.01)

    made = module(build=needs_a_file, example=example)
    outcomes = {o.name: o.ok for o in contract.run_all(made, TARGETS["llama"], {})}
    assert all(outcomes.values())
    assert [name for name in outcomes if name.startswith("lossless")] == [
        f"lossless with K = {k}" for k in contract.LOSSLESS_K
    ]


def test_a_drafter_that_raises_is_an_outcome_and_the_checks_go_on() -> None:
    def build(target: Any, sampler: Any) -> Any:
        raise RuntimeError("no luck")

    outcomes = list(contract.run_all(module(build=build), TARGETS["llama"], {}))
    assert len(outcomes) == len(contract.CHECKS) + 1
    assert {(o.ok, o.message) for o in outcomes} == {(False, "RuntimeError: no luck")}


def test_options_reach_the_drafter_that_is_checked() -> None:
    found: list[float] = []

    def build(target: Any, sampler: Any, *, num_speculative_tokens: int = 4, smoothing: float = 1.0) -> Any:
        found.append(smoothing)
        return Bigrams(target, sampler, num_speculative_tokens, smoothing)

    names = [o.name for o in contract.run_all(module(build=build), TARGETS["llama"], {"smoothing": 0.5})]
    assert set(found) == {0.5}
    assert len(names) == len(contract.CHECKS) + len(contract.LOSSLESS_K)


README = Path(__file__).parent.parent / "drafters" / "README.md"


def test_the_readme_names_every_check() -> None:
    text = README.read_text()
    names = [check.__name__.removeprefix("check_") for check, _, _ in FAULTS.values()]
    assert [name for name in names if f"`{name}`" not in text] == []
