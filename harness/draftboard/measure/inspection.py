"""What a drafter's checkpoint holds, and whether it is read by the right conventions.

The harness knows no checkpoint format. The plug-in package does: it has a module `checkpoints` with

`inspect(path, revision, target) -> Inspection`
    `path` is a folder or hub id, `revision` and `target` may be None. Raises UserError for what it cannot
    read, or what does not fit the target.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftboard.drafter import Drafter, DraftSampler, Target
from draftboard.errors import UserError

HOOK = "checkpoints"
"""The module of a plug-in package that can inspect checkpoints."""


@dataclass(frozen=True, slots=True)
class TensorFact:
    """One stored tensor. `served_bytes` is None for one that is not kept as a tensor of numbers."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    parameters: int
    served_bytes: int | None


@dataclass(frozen=True, slots=True)
class Variation:
    """A way to read a checkpoint; `make` builds a drafter that reads it so and needs `taps`."""

    name: str
    taps: tuple[int, ...]
    make: Callable[[Target, DraftSampler], Drafter]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint as its loader understood it.

    `facts` are its conventions by name. `served` says in which dtype `TensorFact.served_bytes` counts and
    what is left out. `variations` are readings of it, the shipped one first; empty without a target.
    """

    summary: str
    facts: dict[str, str]
    tensors: tuple[TensorFact, ...]
    served: str
    warnings: tuple[str, ...] = ()
    variations: tuple[Variation, ...] = ()


def inspect(path: str, revision: str | None, target: Target | None, plugins: str) -> Inspection:
    """The inspection of a checkpoint by the plug-in package. Raises UserError, also where the package cannot
    inspect."""
    name = f"{plugins}.{HOOK}"
    try:
        hook: Any = getattr(importlib.import_module(name), "inspect", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"plug-in package {plugins!r} has no module {HOOK!r}: {error}") from None
    if not callable(hook):
        raise UserError(f"module {name!r} has no inspect; define inspect(path, revision, target)")
    found = hook(path, revision, target)
    assert isinstance(found, Inspection)
    return found
