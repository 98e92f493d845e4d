"""DSpark's confidence is taught what share of drafts passes, also where the drafter cannot say the word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from draftboard_drafters.training.batches import Batch
from draftboard_drafters.training.objective import said_laws
from draftboard_drafters.training.recipes.dspark import DSparkRecipe
from draftboard_drafters.training.slots import Block
from draftboard_drafters.training.states import Store
from training_factory import everything, tiny_parts, tiny_store, tiny_words


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return tiny_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def trained(store: Store) -> DSparkRecipe:
    """It can say fewer than half of the words."""
    return DSparkRecipe(tiny_parts(), tiny_words(store, 12), store.layout.taps, prompt_weight=0.5)


def batch_of(store: Store) -> Batch:
    texts = everything(store)
    return texts.batch(texts.train)


def test_the_laws_of_the_words_are_those_of_the_whole_head() -> None:
    dice = torch.Generator().manual_seed(0)
    states, head = torch.randn(5, 8, generator=dice), torch.randn(9, 8, generator=dice)
    laws = said_laws(states, head[2:6], torch.cat([head[:2], head[6:]]))
    torch.testing.assert_close(laws, F.linear(states, head).softmax(-1)[:, 2:6])
    torch.testing.assert_close(said_laws(states, head, head[:0]).sum(-1), torch.ones(5))


def test_a_block_is_followed_up_to_the_first_word_that_cannot_be_said(
    trained: DSparkRecipe, store: Store
) -> None:
    batch = batch_of(store)
    block, known = trained.slots.block(trained.initial(0), batch, 0), trained.words.known
    anchors, chosen = trained.slots._anchors(batch, 0)
    reached, said = [], []
    for text, lengths in enumerate(batch.lengths.tolist()):
        for anchor in anchors[text][chosen[text]].tolist():
            for place in range(anchor, min(anchor + trained.k, lengths)):
                last = place + 1 == lengths  # nothing is said after it, so its law is a label
                said.append(last or bool(known[batch.ids[text, place + 1]]))
                reached.append((text, place))
                if not said[-1]:
                    break
    assert (block.weights > 0).tolist() == said
    assert 0 < sum(said) < len(said)
    assert torch.equal(block.weights, block.reached * torch.tensor(said))
    assert block.previous.tolist() == [int(batch.ids[place]) for place in reached]


def test_the_confidence_is_taught_the_share_of_drafts_that_pass(trained: DSparkRecipe, store: Store) -> None:
    """At its start it says one half, so the gradient of its bias is one half less the mean share."""
    batch, parameters = batch_of(store), trained.initial(0)
    bias = parameters["confidence_head.proj.bias"].requires_grad_(True)
    trained.outcome(parameters, batch, 0).loss.backward()
    block = trained.slots.block(parameters, batch, 0)
    guess = F.linear(block.states, trained.words.head).softmax(-1)
    shares = torch.minimum(guess, true_laws(trained, batch, block)).sum(-1)
    expected = (shares * block.reached).sum() / block.reached.sum()
    assert bias.grad is not None and float(0.5 - bias.grad) == pytest.approx(float(expected), abs=1e-5)


def true_laws(trained: DSparkRecipe, batch: Batch, block: Block) -> Any:
    """The target's law at each slot by its whole head; restricted where the slot's word can be said."""
    anchors, _ = trained.slots._anchors(batch, 0)
    text, anchor, slot = block.where.nonzero().T
    finals = batch.states[text, anchors[text, anchor] + slot, -1]
    laws = F.linear(finals, trained.parts.head).softmax(-1)[:, trained.words.ids]
    whole = laws.sum(-1, keepdim=True)
    return torch.where((block.weights > 0)[:, None], laws / whole, laws)
