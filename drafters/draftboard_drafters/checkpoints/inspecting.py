"""A checkpoint explained: its conventions in words, its tensors, what of them is kept beside a target."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from draftboard.drafter import FINAL_NORM, Target
from draftboard.measure.inspection import Inspection, TensorFact
from draftboard_drafters._layers import Geometry, Sight
from draftboard_drafters.checkpoints.loader import load
from draftboard_drafters.checkpoints.record import Checkpoint, Parallel, Serial
from draftboard_drafters.checkpoints.serving import serve
from draftboard_drafters.checkpoints.token_maps import own_map
from draftboard_drafters.checkpoints.variations import variations

_OF_THE_TARGET = ("embed_tokens.weight", "lm_head.weight")


def inspect(path: str, revision: str | None = None, target: Target | None = None) -> Inspection:
    """What the checkpoint in a folder or under a hub id holds, and how it was understood.

    With a target, whether it fits and what of it is kept. Raises UserError as `load` and `serve` do.
    """
    checkpoint = load(path, revision)
    kept, dtype, noted = set(checkpoint.tensors), torch.bfloat16, checkpoint.warnings
    served = "in bfloat16"
    if target is None:
        if {*_OF_THE_TARGET} & kept:
            served += "; less where embedding or head equal the target's, which a target would tell"
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept, dtype = set(serve(checkpoint, target).tensors), target.dtype
        noted = tuple(str(one.message).removeprefix(f"{checkpoint.path}: ") for one in caught)
        served = f"in {_name(dtype)} beside {target.id}, without what that shares"
    return Inspection(
        summary=checkpoint.describe(),
        facts=dict(_facts(checkpoint, target)),
        tensors=tuple(_tensor_facts(checkpoint, kept, dtype)),
        served=served,
        warnings=noted,
        variations=() if target is None else variations(checkpoint, target.num_layers),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_facts(checkpoint: Checkpoint, kept: set[str], dtype: torch.dtype) -> Iterator[TensorFact]:
    for name, tensor in checkpoint.tensors.items():
        role, size = checkpoint.roles[name], None
        if tensor.is_floating_point():
            size = tensor.numel() * dtype.itemsize if name in kept else 0
            role += "" if name in kept else " (a copy of the target's)"
        yield TensorFact(name, role, tuple(tensor.shape), _name(tensor.dtype), tensor.numel(), size)


def _facts(checkpoint: Checkpoint, target: Target | None) -> Iterator[tuple[str, str]]:
    yield "method", checkpoint.method
    yield "layout", checkpoint.layout
    yield "K", str(checkpoint.k)
    yield "taps", _taps(checkpoint, target)
    if checkpoint.parallel is not None:
        yield from _block_facts(checkpoint.parallel)
    if checkpoint.serial is not None:
        yield "slots", "feature t joins token t+1, at position t"
        yield "switches", _switches(checkpoint.serial)
    yield "norms", _norms(checkpoint.geometry)
    yield "rope", ", ".join(f"{name} {value}" for name, value in checkpoint.rope.parameters.items())
    for what, name in zip(("embedding", "head"), _OF_THE_TARGET, strict=True):
        yield what, checkpoint.shared.get(name, "its own")
    yield "vocabulary", _vocabulary(checkpoint)
    if checkpoint.method == "mtp" and (words := own_map(Path(checkpoint.path))):
        yield "token map", words
    yield "made for", _made_for(checkpoint)
    yield "weights", f"{checkpoint.origin}, sha256 of the tensors {checkpoint.sha256}"


def _taps(checkpoint: Checkpoint, target: Target | None) -> str:
    if not checkpoint.taps and target is None:
        return "none in the file: 2, half the depth, and 3 from the end"
    found = checkpoint.taps if target is None else checkpoint.taps_of(target.num_layers)
    words = ["after the final norm" if tap == FINAL_NORM else str(tap) for tap in found]
    return f"{', '.join(words)} (0 is the embedding output, k the raw output of block k-1)"


def _block_facts(block: Parallel) -> Iterator[tuple[str, str]]:
    reads = "the token after it, the anchor's slot too" if block.anchor_predicts else "the token at it"
    yield "slots", f"{block.block_size} with the anchor; a slot predicts {reads}"
    yield "mask id", str(block.mask_id)
    yield "sight", "; ".join(_sight(sight) for sight in block.sights)
    if block.markov is not None:
        yield "Markov head", f"{block.markov}, rank {block.markov_rank}"
        yield "confidence", f"from {block.confidence}" if block.confidence else "no head"


def _sight(sight: Sight) -> str:
    start = "before the block" if sight.from_first_row else "before each slot"
    window = "all positions" if sight.window is None else f"{sight.window} positions {start}"
    return f"{'causal' if sight.causal else 'both ways'}, {window}"


def _switches(serial: Serial) -> str:
    return ", ".join(f"{name} {str(value).lower()}" for name, value in dataclasses.asdict(serial).items())


def _norms(shape: Geometry) -> str:
    kind = "times 1 + w" if shape.zero_centred_norms else "times w"
    heads = "queries and keys normed" if shape.qk_norm else "queries and keys not normed"
    return f"RMS {kind}, eps {shape.eps:g}, {heads}"


def _vocabulary(checkpoint: Checkpoint) -> str:
    if "d2t" not in checkpoint.tensors:
        return f"{checkpoint.vocab_size}, the target's"
    return f"{checkpoint.draft_vocab_size} of {checkpoint.vocab_size}, by d2t (target id minus draft id)"


def _made_for(checkpoint: Checkpoint) -> str:
    layers = f"a target of {checkpoint.num_target_layers} layers" if checkpoint.num_target_layers else None
    known = [part for part in (checkpoint.verifier, layers) if part]
    return ", ".join(known) or "not stated"
