"""One file per method that is trained, found by listing the folder.

A recipe module has `WORDS`, the size of the vocabulary its loss reads; `SETTINGS`, its schedule; `AFTER`, the
methods whose trained parameters it starts from; and `make(parts, words, taps, before)`, where `before` are
those parameters by method, none for a training that goes on from what is shipped. The loss is
`objective.Recipe`'s.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType


def modules() -> dict[str, ModuleType]:
    """The recipe modules by method, found by listing this folder."""
    return {m.name: importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)}


def in_order(known: Mapping[str, ModuleType]) -> list[str]:
    """Methods after those that they start from."""
    ordered = list[str]()
    while len(ordered) < len(known):
        ready = [n for n, m in known.items() if n not in ordered and set(m.AFTER) <= set(ordered)]
        ordered.append(ready[0])
    return ordered
