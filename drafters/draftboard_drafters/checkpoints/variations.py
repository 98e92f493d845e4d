"""A checkpoint read by other conventions than its own, one changed at a time: what a self-test compares."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, Draft, Drafter, DraftSampler, Target
from draftboard.measure.inspection import Variation
from draftboard_drafters._layers import Angles, Rotary
from draftboard_drafters.checkpoints.record import Checkpoint, Parallel, Serial

Readings = Iterator[tuple[str, Checkpoint]]


def variations(checkpoint: Checkpoint, num_layers: int) -> tuple[Variation, ...]:
    """The checkpoint as it is, then every reading of it that differs in one convention and can be run with a
    target of `num_layers` blocks."""
    taps = checkpoint.taps_of(num_layers)
    turned = [(f"drafts turned by one position {words}", by) for words, by in (("less", -1), ("more", 1))]
    return (
        Variation("as shipped", taps, _maker(checkpoint)),
        *(
            Variation(name, other.taps_of(num_layers), _maker(other))
            for name, other in _readings(checkpoint, num_layers)
        ),
        *(Variation(name, taps, _maker(checkpoint, by)) for name, by in turned),
    )


def _maker(checkpoint: Checkpoint, turned: int = 0) -> Callable[[Target, DraftSampler], Drafter]:
    def make(target: Target, sampler: DraftSampler) -> Drafter:
        # Imported here: the drafters import this package.
        module = importlib.import_module(f"draftboard_drafters.{checkpoint.method}")
        drafter: Drafter = module.drafter(checkpoint, target, sampler, None)
        return Turned(drafter, turned) if turned else drafter

    return make


class Turned:
    """A drafter whose drafting rows are turned as if they stood `by` positions further on; the rows of what
    is committed are right."""

    def __init__(self, drafter: Any, by: int) -> None:
        self._drafter, self._rows = drafter, getattr(drafter, "backbone", drafter)
        self._right, self._wrong = self._rows.rotary, _Shifted(self._rows.rotary, by)
        self.taps, self.weights = drafter.taps, drafter.weights
        self.num_speculative_tokens = drafter.num_speculative_tokens
        self.prefill, self.commit, self.release = drafter.prefill, drafter.commit, drafter.release

    def propose(self, limit: int) -> Draft:
        """Drafts with the wrong angles."""
        self._rows.rotary = self._wrong
        try:
            draft: Draft = self._drafter.propose(limit)
        finally:
            self._rows.rotary = self._right
        return draft


@dataclasses.dataclass(frozen=True, slots=True)
class _Shifted:
    rotary: Rotary
    by: int
    table: None = None

    @property
    def cos(self) -> Tensor:
        cos: Tensor = self.rotary.cos
        return cos

    def at(self, place: slice) -> Angles:
        return self.rotary.at(slice(place.start + self.by, place.stop + self.by))


def _readings(checkpoint: Checkpoint, num_layers: int) -> Readings:
    yield from _taps(checkpoint, num_layers)
    yield from _vocabulary(checkpoint)
    if checkpoint.parallel is not None:
        yield from _block(checkpoint, checkpoint.parallel)
    if checkpoint.serial is not None:
        yield from _steps(checkpoint, checkpoint.serial)


def _taps(checkpoint: Checkpoint, num_layers: int) -> Readings:
    taps = checkpoint.taps_of(num_layers)
    if taps == (FINAL_NORM,):
        yield "the state before the final norm", dataclasses.replace(checkpoint, taps=(num_layers,))
        return
    for words, by in (("too low", -1), ("too high", 1)):
        moved = tuple(tap + by for tap in taps)
        if min(moved) >= 0 and max(moved) <= num_layers:
            yield f"taps one {words}", dataclasses.replace(checkpoint, taps=moved)
    if len(taps) > 1:
        yield "taps in reverse order", dataclasses.replace(checkpoint, taps=taps[::-1])


def _vocabulary(checkpoint: Checkpoint) -> Readings:
    def with_tensor(name: str, tensor: Tensor) -> Checkpoint:
        return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, name: tensor})

    if "d2t" in checkpoint.tensors:
        offsets = checkpoint.tensors["d2t"]
        yield "d2t read as target ids", with_tensor("d2t", offsets - torch.arange(len(offsets)))
    bias = "markov_head.markov_w2.weight"
    if bias in checkpoint.tensors:
        yield "no bias from the previous token", with_tensor(bias, torch.zeros_like(checkpoint.tensors[bias]))


def _block(checkpoint: Checkpoint, block: Parallel) -> Readings:
    def with_block(**changes: Any) -> Checkpoint:
        return dataclasses.replace(checkpoint, parallel=dataclasses.replace(block, **changes))

    slot = "early" if not block.anchor_predicts else "late"
    yield f"slots read one too {slot}", with_block(anchor_predicts=not block.anchor_predicts)
    yield "the mask's neighbour as mask", with_block(mask_id=block.mask_id - 1)
    flipped = tuple(dataclasses.replace(sight, causal=not sight.causal) for sight in block.sights)
    yield "causal where it is not, and the reverse", with_block(sights=flipped)
    if any(sight.window is not None for sight in block.sights):
        wide = tuple(dataclasses.replace(sight, window=None) for sight in block.sights)
        yield "windows ignored", with_block(sights=wide)


def _steps(checkpoint: Checkpoint, switches: Serial) -> Readings:
    """EAGLE-3 always joins the embedding first, and MTP adds nothing to its feature but what it joined."""
    own = "norm_before_residual" if checkpoint.method == "eagle3" else "embedding_first"
    for name in (own, "norm_before_head", "recycle_normed"):
        value = not getattr(switches, name)
        changed = dataclasses.replace(switches, **{name: value})
        yield f"{name} {str(value).lower()}", dataclasses.replace(checkpoint, serial=changed)
