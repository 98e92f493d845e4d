"""A tiny target's greedy texts in a store, and every recipe on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from draftboard_drafters.training.batches import Texts
from draftboard_drafters.training.parts import Parts, Words, count, most_frequent, parts_of_model
from draftboard_drafters.training.recipes.dflash import DFlashRecipe
from draftboard_drafters.training.recipes.dspark import DSparkRecipe
from draftboard_drafters.training.recipes.eagle3 import Eagle3Recipe
from draftboard_drafters.training.recipes.mtp import MtpRecipe
from draftboard_drafters.training.states import Layout, Store, fill, taps_of
from tiny import plain_greedy, tiny_model, tiny_target

LAYERS, VOCABULARY = 8, 24
SIZES: dict[str, Any] = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
RECIPES: dict[str, Callable[..., Any]] = {
    "eagle3": Eagle3Recipe,
    "mtp": MtpRecipe,
    "dflash": DFlashRecipe,
    "dspark": DSparkRecipe,
}


def tiny_parts() -> Parts:
    """The tiny target's tensors."""
    return parts_of_model("tiny", "", tiny_model(**SIZES))


def tiny_store(folder: Path, texts: int = 6, reply: int = 14) -> Store:
    """Greedy replies of the tiny target to random prompts, with its states."""
    target, model = tiny_target(**SIZES), tiny_model(**SIZES)
    dice = torch.Generator().manual_seed(3)
    store = Store(folder, Layout("tiny", taps_of(LAYERS), target.hidden_size))
    for index in range(texts):
        prompt = torch.randint(VOCABULARY, (3 + index,), generator=dice).tolist()
        fill(store, target, [(prompt, plain_greedy(model, prompt, reply))])
    return store


def tiny_words(store: Store, size: int = 20) -> Words:
    """The most frequent ids of the store's replies."""
    ids = store.ids()
    replies = [ids[row.start + row.prompt : row.start + row.length] for row in store.rows]
    return most_frequent(count(replies, VOCABULARY), size, tiny_parts())


def recipe(name: str, store: Store, **options: Any) -> Any:
    """A recipe for the tiny target."""
    fitting = {"mask_id": 1} if name in ("dflash", "dspark") else {}
    return RECIPES[name](tiny_parts(), tiny_words(store), store.layout.taps, **{**fitting, **options})


def everything(store: Store) -> Texts:
    """All texts of the store, none held out."""
    texts = Texts([store], held_out=2)
    texts.train, texts.held_out = [*texts.train, *texts.held_out], []
    return texts
