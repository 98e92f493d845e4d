"""From trained parameters to the checkpoint that is shipped, and back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from draftboard_drafters.checkpoints import Checkpoint, Plan
from draftboard_drafters.checkpoints.loader import assemble, load
from draftboard_drafters.training.parts import Words

NOT_TRAINED = frozenset({"lm_head.weight", "d2t", "t2d"})
"""What `kept_tensors` adds to the trained ones."""


def trained(plan: Plan, tensors: Mapping[str, Tensor]) -> Checkpoint:
    """The checkpoint of a plan with these tensors, floats in bfloat16."""
    stored = {
        name: tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    return assemble(plan, stored, "trained weights", "trained here")


def kept_tensors(parameters: Mapping[str, Tensor], words: Words) -> dict[str, Tensor]:
    """The tensors that are stored: the trained ones, the head's rows of the target, and the map of a
    vocabulary that is reduced."""
    if bool(words.known.all()):
        return {**parameters, "lm_head.weight": words.head}
    return {**parameters, "lm_head.weight": words.head, "d2t": words.offsets, "t2d": words.known}


def read_back(folder: Path) -> dict[str, Tensor]:
    """The trained parameters of a shipped drafter, float32, by the names that its recipe gives them.

    Raises UserError for a folder that holds none, or not the weights of its card.
    """
    tensors = load(str(folder)).tensors
    return {name: tensor.float() for name, tensor in tensors.items() if name not in NOT_TRAINED}


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block has ended well. What was there stays
    until then; a kill in between is undone by `restore`."""
    new, old = _beside(folder, "new"), _beside(folder, "old")
    restore(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path) -> None:
    """Brings back what a killed `replacing` had moved away, or removes it if it was replaced."""
    old = _beside(folder, "old")
    if old.exists() and folder.exists():
        shutil.rmtree(old)
    elif old.exists():
        old.rename(folder)


def _beside(folder: Path, word: str) -> Path:
    return folder.with_name(f".{folder.name}.{word}")
