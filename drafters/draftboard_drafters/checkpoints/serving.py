"""A checkpoint beside a target: does it fit, which of its tensors are needed, in which dtype and place."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, Target, UserError, Weights
from draftboard_drafters._layers import Vocabulary
from draftboard_drafters.checkpoints.record import TARGETS, Checkpoint
from draftboard_drafters.checkpoints.token_maps import head_rows

_CHUNK = 64
"""Rows compared at a time."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a drafter computes with. `tensors` are in the target's dtype on its device, by record name.

    Embedding and head are left out where they are the target's, also where the file has copies of them.
    """

    tensors: Mapping[str, Tensor]
    weights: Weights
    vocabulary: Vocabulary


def serve(checkpoint: Checkpoint, target: Target, only: Tensor | None = None) -> Served:
    """The checkpoint's tensors for a target. `only` limits a drafter that has the target's head to these
    ids, int64 [n].

    Raises UserError, naming what differs, when the checkpoint was made for another target; warns about
    disagreements that do not prevent a run.
    """
    _check_fit(checkpoint, target)
    for warning in (*checkpoint.warnings, *_disagreements(checkpoint, target)):
        warnings.warn(f"{checkpoint.path}: {warning}", stacklevel=3)
    placed = {
        name: tensor.to(target.device, target.dtype)
        for name, tensor in checkpoint.tensors.items()
        if tensor.is_floating_point()
    }
    ids = None
    if "d2t" in checkpoint.tensors:
        offsets = checkpoint.tensors["d2t"].to(target.device, torch.int64)
        ids = offsets + torch.arange(len(offsets), device=target.device)
    for name in _copies(placed, target):
        del placed[name]
    if only is not None:
        if "lm_head.weight" in placed:
            raise UserError(
                f"{checkpoint.path} has a head of its own, which no token map can limit; leave it out"
            )
        ids, placed["lm_head.weight"] = only, head_rows(target, only)
    vocabulary = Vocabulary(target, placed.get("embed_tokens.weight"), placed.get("lm_head.weight"), ids)
    size = sum(tensor.numel() * tensor.element_size() for tensor in placed.values())
    sha256 = checkpoint.sha256 if only is None else _with_map(checkpoint.sha256, only)
    weights = Weights(size, sha256, checkpoint.origin, checkpoint.training)
    return Served(placed, weights, vocabulary)


def _with_map(sha256: str, only: Tensor) -> str:
    """One hash for the weights and the ids that they are limited to."""
    return hashlib.sha256(sha256.encode() + only.cpu().numpy().tobytes()).hexdigest()


def _check_fit(checkpoint: Checkpoint, target: Target) -> None:
    def differs(what: str, ours: object, theirs: object) -> UserError:
        return UserError(
            f"{checkpoint.path} was made for a target with {what} {ours}, and {target.id!r} has {theirs};"
            " choose the checkpoint of this target"
        )

    layers, width = checkpoint.num_target_layers, checkpoint.geometry.hidden_size
    if layers is not None and layers != target.num_layers:
        raise differs("layers:", layers, target.num_layers)
    taps = checkpoint.taps_of(target.num_layers)
    if max(taps) > target.num_layers or min(taps) < FINAL_NORM or len(set(taps)) < len(taps):
        raise differs("the distinct taps", taps, f"0 to {target.num_layers}")
    if checkpoint.vocab_size != target.vocab_size:
        raise differs("vocabulary size", checkpoint.vocab_size, target.vocab_size)
    if TARGETS in checkpoint.shared.values() and width != target.hidden_size:
        raise differs("hidden size", width, target.hidden_size)
    mask = checkpoint.parallel.mask_id if checkpoint.parallel else 0
    if not 0 <= mask < target.vocab_size:
        raise differs("a mask token numbered", mask, f"ids 0 to {target.vocab_size - 1}")


def _disagreements(checkpoint: Checkpoint, target: Target) -> Iterator[str]:
    limit = checkpoint.rope.max_position_embeddings
    if limit < target.max_context:
        yield f"trained on up to {limit} positions; beyond that, of {target.max_context}, drafts may be worse"
    if target.num_layers in checkpoint.taps:
        yield "it taps the last block, which engines hand out raw or normed; it gets the raw output"
    if target.dtype is torch.float16:
        yield "some targets' states overflow float16, and acceptance collapses; bfloat16 is safe"


def _copies(placed: Mapping[str, Tensor], target: Target) -> list[str]:
    """Names of stored tensors that are the target's own, bit for bit in the target's dtype."""
    same = {"embed_tokens.weight": _same_embedding, "lm_head.weight": _same_head}
    return [name for name, compare in same.items() if name in placed and compare(placed[name], target)]


def _same_embedding(own: Tensor, target: Target) -> bool:
    ids = torch.arange(len(own), device=own.device)
    if own.shape != (target.vocab_size, target.hidden_size):
        return False
    try:
        return all(torch.equal(target.embed(some), own[some]) for some in torch.split(ids, _CHUNK * _CHUNK))
    except UserError:  # an embedding that cannot be shared is no copy
        return False


def _same_head(own: Tensor, target: Target) -> bool:
    """Unit vectors through the target's head give its weight, exactly: every sum has one term."""
    units = torch.eye(target.hidden_size, dtype=own.dtype, device=own.device)
    shape = (target.vocab_size, target.hidden_size)
    return own.shape == shape and all(
        torch.equal(target.head(some), own[:, some.argmax(dim=1)].T) for some in torch.split(units, _CHUNK)
    )
