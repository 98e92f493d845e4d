"""What is trained is what drafts: a recipe's forward against the drafter that loads its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters.training.recipes import draft_model
from draftboard_drafters.training.recipes.draft_model import DraftModelRecipe
from draftboard_drafters.training.replay import replay
from draftboard_drafters.training.states import Store
from shipped import MODULES
from tiny import tiny_target
from tiny_folder import byte_tokenizer
from training_factory import EVERY, SIZES, everything, recipe, tiny_parts, tiny_store, tiny_words


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return tiny_store(tmp_path_factory.mktemp("store"))


def perturbed(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters moved far from their start, exactly representable in bfloat16."""
    dice = torch.Generator().manual_seed(7)
    moved = {n: t + 0.3 * torch.randn(t.shape, generator=dice) for n, t in parameters.items()}
    return {name: tensor.to(torch.bfloat16).float() for name, tensor in moved.items()}


def drafter_of(name: str, trained: Any, parameters: dict[str, Tensor], folder: Path) -> Any:
    trained.ship(parameters, folder)
    sampler = Sampler(Sampling(), Randomness(0, torch.device("cpu")))
    target = tiny_target(**SIZES)
    if name != "draft_model":
        return MODULES[name].build(target, sampler, checkpoint=str(folder))
    target.tokenizer = byte_tokenizer()
    return MODULES[name].build(target, sampler, model=str(folder))


def with_tokenizer(trained: Any, folder: Path) -> Any:
    """The recipe, its target having a tokenizer, which a draft model is shipped with."""
    byte_tokenizer().save_pretrained(folder)
    trained.parts = dataclasses.replace(trained.parts, source=str(folder))
    return trained


@pytest.mark.parametrize("name", EVERY)
def test_the_training_forward_guesses_what_the_drafter_guesses(
    name: str, store: Store, tmp_path: Path
) -> None:
    """From every place of a reply the leading right guesses are the same."""
    trained = with_tokenizer(recipe(name, store), tmp_path / "target")
    parameters = perturbed(trained.initial(0))
    drafter = drafter_of(name, trained, parameters, tmp_path / name)
    texts, total = everything(store), 0
    for text in texts.train:
        row, batch = text.row, texts.batch([text])
        hits = trained.outcome(parameters, batch, 0).hits.long().cumprod(-1).sum(-1)
        ids, states = batch.ids[0].tolist(), batch.states[0][:, _columns(drafter.taps, texts.taps)]
        found = _leading(drafter, ids, states, row.prompt, trained.k)
        assert sorted(hits.tolist()) == sorted(found)
        total += sum(found)
    assert total > 0


def _columns(wanted: tuple[int, ...], stored: tuple[int, ...]) -> list[int]:
    return [stored.index(tap) for tap in wanted]


def _leading(drafter: Any, ids: list[int], states: Tensor, prompt: int, k: int) -> list[int]:
    """Right guesses in a row after each of the reply's tokens that has k successors and known guesses."""
    found = []
    for start in range(prompt, len(ids) - k):
        [first, *_] = replay(drafter, ids[:start], [*ids[start : start + k + 1], 0], states)
        found.append(first.accepted)
    return found


def test_a_word_outside_of_the_rows_is_no_hit_of_the_draft_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss reads some rows of the head. The likeliest of them is no guess of a word that is none."""
    words = tiny_words(store, 4)
    trained = DraftModelRecipe(tiny_parts(), words, store.layout.taps, k=1, others=0)
    monkeypatch.setattr(draft_model, "laws", lambda finals, head: finals.new_ones(len(finals), len(head)))
    alike = {name: torch.zeros_like(tensor) for name, tensor in trained.initial(0).items()}
    texts = everything(store)
    batch = texts.batch(texts.train)
    hits = trained.outcome(alike, batch, 0).hits[:, 0]
    starts = batch.starts(1)
    said = words.known[batch.ids[:, 1:]][starts[:, :-1]]
    assert torch.equal(hits, said) and 0 < int(said.sum()) < len(said)
