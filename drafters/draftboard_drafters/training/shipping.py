"""From trained parameters to the checkpoint that is shipped, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from draftboard_drafters.checkpoints import Checkpoint, Plan
from draftboard_drafters.checkpoints.loader import assemble, load
from draftboard_drafters.training.parts import Words

NOT_TRAINED = frozenset({"lm_head.weight", "d2t", "t2d"})
"""Stored tensors that are the target's or say which of its words are known."""


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
