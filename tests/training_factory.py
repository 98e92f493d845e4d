"""A tiny target's greedy texts in a store, and every recipe on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.parts import Parts, Words, count, most_frequent, parts_of_model
from draftboard_drafters.training.recipes.dflash import DFlashRecipe
from draftboard_drafters.training.recipes.draft_model import DraftModelRecipe
from draftboard_drafters.training.recipes.dspark import DSparkRecipe
from draftboard_drafters.training.recipes.eagle3 import Eagle3Recipe
from draftboard_drafters.training.recipes.mtp import MtpRecipe
from draftboard_drafters.training.states import Layout, Store, fill, taps_of
from tiny import plain_greedy, tiny_model, tiny_target

LAYERS, VOCABULARY = 8, 32
"""Of a vocabulary of 32 the texts leave an id out, for a mask."""
SIZES: dict[str, Any] = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
RECIPES: dict[str, Callable[..., Any]] = {
    "eagle3": Eagle3Recipe,
    "mtp": MtpRecipe,
    "dflash": DFlashRecipe,
    "dspark": DSparkRecipe,
}
"""Drafters that read the target's states."""
EVERY = {**RECIPES, "draft_model": DraftModelRecipe}
FULL_HEADS = frozenset({"mtp", "draft_model"})
"""Drafters that say any word, whatever their loss reads."""


def tiny_parts() -> Parts:
    """The tiny target's tensors."""
    return parts_of_model("tiny", "", tiny_model(**SIZES))


def tiny_store(folder: Path, texts: int = 6, reply: int = 14) -> Store:
    """Greedy replies of the tiny target to random prompts, with its states."""
    target, model = tiny_target(**SIZES), tiny_model(**SIZES)
    dice = torch.Generator().manual_seed(4)
    store = Store(folder, Layout("tiny", taps_of(LAYERS), target.hidden_size))
    for index in range(texts):
        prompt = torch.randint(VOCABULARY, (3 + index,), generator=dice).tolist()
        fill(store, target, [(prompt, plain_greedy(model, prompt, reply))])
    return store


def tiny_words(store: Store, size: int = 20) -> Words:
    """The most frequent ids of the store's replies."""
    ids = store.ids()
    replies = [ids[row.start + row.prompt : row.start + row.length] for row in store.rows]
    present = Texts([store], held_out=2).present(VOCABULARY)
    return most_frequent(count(replies, VOCABULARY), size, tiny_parts(), present)


def recipe(name: str, store: Store, **options: Any) -> Any:
    """A recipe for the tiny target. Where its drafter says any word, its loss reads all of them."""
    words = tiny_words(store, VOCABULARY if name in FULL_HEADS else 20)
    return EVERY[name](tiny_parts(), words, store.layout.taps, **options)


def everything(store: Store) -> Texts:
    """All texts of the store, none held out."""
    texts = Texts([store], held_out=2)
    texts.train, texts.held_out = [*texts.train, *texts.held_out], []
    return texts
