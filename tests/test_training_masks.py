"""The id that stands for a word to be guessed is one that no training text contains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftboard.errors import UserError
from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.masks import mask_of
from draftboard_drafters.training.replies import Replies
from tiny_folder import byte_tokenizer
from training_factory import VOCABULARY, recipe, tiny_store

EMBEDDED = "smollm2-135m-instruct-q4_1"
DRAFTERS = Path(__file__).resolve().parents[1] / "drafters"


def present(*ids: int, of: int = 300) -> Tensor:
    """bool [of], true at these ids."""
    return torch.isin(torch.arange(of), torch.tensor(ids))


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Bytes 0 to 255, then two special tokens and an ordinary one that was added."""
    made = byte_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]})
    made.add_tokens(["later"])
    made.save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_special_token_that_no_text_has_is_taken_first(tokenizer: str) -> None:
    assert mask_of(tokenizer, present(1)) == 257
    assert mask_of(tokenizer, present(1, 257)) == 256
    assert mask_of(tokenizer, present(256, 257, 299)) == 298
    assert mask_of(tokenizer, present(of=200)) == 199
    assert mask_of("", present(299)) == 298


def test_an_id_that_a_text_has_is_refused_with_one_that_would_do(tokenizer: str) -> None:
    assert mask_of(tokenizer, present(7), asked=8) == 8
    with pytest.raises(UserError, match="no training text contains; 7 is not, 257 is"):
        mask_of(tokenizer, present(7), asked=7)
    with pytest.raises(UserError, match="300 is not"):
        mask_of(tokenizer, present(7), asked=300)
    with pytest.raises(UserError, match="all 4 ids"):
        mask_of(tokenizer, present(*range(4), of=4))


def test_the_embedded_target_keeps_the_mask_of_its_shipped_weights() -> None:
    replies = Replies(DRAFTERS / "train_data" / f"{EMBEDDED}.jsonl")
    said = {id for pair in replies for ids in pair for id in ids}
    source = str(DRAFTERS / "weights" / EMBEDDED / "draft_model")
    assert mask_of(source, present(*said, of=49_152)) == 16


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_recipe_masks_with_an_id_that_is_in_none_of_its_texts(name: str, tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "store")
    ids = set(store.ids().tolist())
    trained = recipe(name, store)
    assert trained.slots.mask_id == max(set(range(VOCABULARY)) - ids)
    assert trained.slots.conventions.mask_id == trained.slots.mask_id
    with pytest.raises(UserError, match="must be one that no training text contains"):
        recipe(name, store, mask_id=min(ids))


def test_held_out_texts_count_too(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    texts = Texts([store], held_out=2)
    assert texts.held_out
    assert texts.present(VOCABULARY).nonzero()[:, 0].tolist() == sorted(set(store.ids().tolist()))
