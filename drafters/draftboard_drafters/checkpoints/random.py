"""Checkpoints with random weights, for checks that need a drafter and no training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftboard.drafter import Target
from draftboard_drafters._layers import Geometry, Rope, Sight
from draftboard_drafters.checkpoints import parallel
from draftboard_drafters.checkpoints.loader import assemble
from draftboard_drafters.checkpoints.record import TARGETS, Checkpoint, Expected, Parallel, Plan, Spec


def randomised(plan: Plan, seed: int = 0, spread: float = 0.3) -> Checkpoint:
    """A checkpoint of this plan in float32. Norms are near 1, all else is normal with the given spread.

    Tensors that the plan lets the target provide are left to it.
    """
    generator = torch.Generator().manual_seed(seed)

    def values(expected: Expected) -> Tensor:
        drawn = torch.randn(expected.shape, generator=generator) * spread
        return 1 + drawn if expected.name.endswith("norm.weight") else drawn

    tensors = {expected.name: values(expected) for expected in plan.tensors if expected.absent is None}
    return assemble(plan, tensors, "random weights", "random")


def random_block_drafter(
    method: str,
    target: Target,
    *,
    seed: int = 0,
    sights: tuple[Sight, ...] = (Sight(), Sight()),
    **block: Any,
) -> Checkpoint:
    """A random DFlash or DSpark that fits the target: two layers, taps low and high.

    `block` are the fields of `Parallel` besides the mask, which is the target's last id.
    """
    shape = Geometry(
        hidden_size=target.hidden_size,
        intermediate_size=2 * target.hidden_size,
        heads=4,
        kv_heads=2,
        head_dim=16,
        eps=1e-6,
        qk_norm=True,
    )
    conventions = Parallel(mask_id=target.vocab_size - 1, sights=sights, **block)
    spec = Spec(
        method=method,
        layout="none",
        taps=(1, target.num_layers - 1),
        k=conventions.drafts,
        geometry=shape,
        rope=Rope({"rope_type": "default", "rope_theta": 10000.0}, target.max_context),
        layers=len(sights),
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        parallel=conventions,
    )
    return randomised(Plan(spec, parallel.tensors(spec, embedding=TARGETS, head=TARGETS)), seed)
