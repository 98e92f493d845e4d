"""The drafters of the folder, found by listing it, for tests that hold for each of them."""

from __future__ import annotations

from typing import Any

from draftboard.measure import contract, plugins
from draftboard.measure.cache import KVCache

PACKAGE = "draftboard_drafters"
MODULES = {name: plugins.load(name, PACKAGE) for name in plugins.list_drafters(PACKAGE)}
GUESSING = [name for name, module in MODULES.items() if not module.CARD.baseline]
FAMILIES = ["llama", "qwen3"]
ALL_K = [1, 2, 3, 5, 7, 8, 15]


def maker(name: str, k: int) -> contract.Make:
    """A drafter of the folder with K guesses a round; the baseline has no K."""
    return contract.maker(MODULES[name], {contract.K_OPTION: k} if name in GUESSING else {})


def caches(thing: Any, depth: int = 3) -> list[KVCache]:
    """The caches that a drafter holds, wherever it keeps them."""
    if isinstance(thing, KVCache):
        return [thing]
    held = list(getattr(thing, "__dict__", {}).values()) if depth else []
    return [found for value in held for found in caches(value, depth - 1)]
