"""The record that every checkpoint becomes, whatever its layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from draftboard.drafter import FINAL_NORM, Origin, Training, UserError
from draftboard_drafters._layers import Geometry, Rope, Sight

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the tensors in a checkpoint's files, by their keys there."""

Markov = Literal["vanilla", "gated", "rnn"]
Confidence = Literal["hidden", "hidden and previous token"]

TARGETS = "the target's"
"""The rule for tensors that a drafter shares with its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Conventions of a drafter that fills a block of slots in one forward."""

    block_size: int
    """Slots it was trained with: the anchor (the newest committed token) and mask tokens."""
    mask_id: int
    anchor_predicts: bool
    """Slot j predicts the token after slot j, the anchor's included; else the token at slot j, and the
    anchor's slot predicts nothing."""
    sights: tuple[Sight, ...]
    """What the slots see, layer by layer."""
    markov: Markov | None = None
    markov_rank: int = 0
    confidence: Confidence | None = None
    """What the confidence head reads."""

    @property
    def drafts(self) -> int:
        """Tokens drafted by the whole block."""
        return self.block_size if self.anchor_predicts else self.block_size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Serial:
    """Conventions of a drafter that extrapolates one state after the other.

    A step joins a feature (from taps, later its own output) with the embedding of the token after it.
    """

    embedding_first: bool = True
    """The embedding stands before the feature where the two are joined."""
    tap_norms: bool = False
    """Every tap is normed by its own norm before the taps are fused."""
    norm_before_fuse: bool = False
    """One norm over all taps together, before they are fused."""
    norm_before_residual: bool = False
    """The residual stream starts from the normed feature, not from the raw one."""
    norm_before_head: bool = True
    """The output is normed before the head."""
    recycle_normed: bool = False
    """The next step's feature is the output after the final norm, not before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All that a checkpoint says besides its tensors, in this project's conventions."""

    method: str
    """Name of the drafter module that runs it."""
    layout: str
    taps: tuple[int, ...]
    """As in `draftboard.drafter`: 0 the embedding output, k the raw output of block k-1, FINAL_NORM. Empty
    where the layout fixes them by the target's depth; `taps_of` gives them then."""
    k: int
    """Drafts a round that it was trained for."""
    geometry: Geometry
    rope: Rope
    layers: int
    vocab_size: int
    """Ids of the target's that it reads."""
    draft_vocab_size: int
    """Rows of its head; below `vocab_size` the tensor `d2t` says which ids they are."""
    num_target_layers: int | None = None
    """Layers of the target it was trained for, where the checkpoint says so."""
    verifier: str | None = None
    """Name of the target it was trained for, where the checkpoint says so."""
    parallel: Parallel | None = None
    serial: Serial | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Disagreements within the configuration that do not decide anything."""

    def taps_of(self, num_layers: int) -> tuple[int, ...]:
        """The taps in a target of `num_layers` blocks.

        Files of the first EAGLE-3 code base name none: its code always takes the inputs of the blocks 2,
        half the depth, and the third from the end. Raises UserError for a target so shallow that these are
        not three states in rising order: that code takes fewer then, or others.
        """
        if self.taps:
            return self.taps
        taps = (2, num_layers // 2, num_layers - 3)
        if not taps[0] < taps[1] < taps[2]:
            raise UserError(
                f"the checkpoint names no taps, and the rule for such files (2, half the depth, 3 from the"
                f" end) gives {taps} in a target of {num_layers} layers; it needs at least 7"
            )
        return taps


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that belongs to a checkpoint."""

    name: str
    """Its name in the record."""
    shape: tuple[int, ...]
    role: str
    key: str = ""
    """Its name in the file, where that is another one."""
    absent: str | None = None
    """Where it comes from when the file leaves it out; None: it must be there."""

    @property
    def file_key(self) -> str:
        """Its name in the file."""
        return self.key or self.name


@dataclass(frozen=True, slots=True)
class Plan:
    """How a layout reads one checkpoint."""

    spec: Spec
    tensors: tuple[Expected, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of file keys that belong to something else, and to what."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its tensors in the file."""
        return frozenset(expected.file_key for expected in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Spec):
    """A drafter's conventions and tensors.

    `tensors` are on the CPU as stored, by their names in the record: `fc.weight` [H, taps * H],
    `hidden_norm.weight`, `layers.<i>.*` as in transformers' Llama-style layers, `norm.weight`,
    `embed_tokens.weight` [V, H], `lm_head.weight` [Vd, H], `d2t` int64 [Vd] (target id minus draft id) and
    `t2d` bool [V]; more with the method. `roles` explains each, `shared` names those that the file leaves to
    others, with the rule. `sha256` covers names, shapes and values of the tensors.
    """

    tensors: Mapping[str, Tensor] = field(compare=False)
    roles: Mapping[str, str] = field(compare=False)
    shared: Mapping[str, str]
    path: str
    sha256: str
    origin: Origin
    training: Training | None = None
    """What its training cost, where a card beside the weights says so."""

    def describe(self) -> str:
        """What was recognised, in one line."""
        own = [name for name in ("embedding", "head") if _TENSOR_OF[name] in self.tensors]
        others = [name for name in ("embedding", "head") if name not in own]
        shape, floats = self.geometry, [t for t in self.tensors.values() if t.is_floating_point()]
        parts = [
            f"{self.method} in {self.layout} layout",
            f"K {self.k}{_block_words(self.parallel)}{_serial_words(self.serial)}",
            f"{self.layers} layer{'s' if self.layers > 1 else ''} of width {shape.hidden_size}"
            f" ({shape.heads} heads, {shape.kv_heads} KV heads of {shape.head_dim})",
            f"taps {_tap_words(self.taps)}",
            f"rope {self.rope.parameters.get('rope_type', 'default')} {self.rope.parameters['rope_theta']:g}",
            f"vocabulary {self.draft_vocab_size} of {self.vocab_size}",
            *([f"own {' and '.join(own)}"] if own else []),
            *([f"{' and '.join(others)} from the target"] if others else []),
            f"{sum(t.numel() for t in floats) / 1e6:.1f} M parameters",
        ]
        return ", ".join(parts)


_TENSOR_OF = {"embedding": "embed_tokens.weight", "head": "lm_head.weight"}


def _tap_words(taps: tuple[int, ...]) -> str:
    return (
        " ".join("final norm" if tap == FINAL_NORM else str(tap) for tap in taps) or "2, half, 3 from the end"
    )


def _block_words(parallel: Parallel | None) -> str:
    """How a block drafter uses its slots."""
    if parallel is None:
        return ""
    slot = "predicts" if parallel.anchor_predicts else "is not read"
    markov = f", {parallel.markov} Markov head of rank {parallel.markov_rank}" if parallel.markov else ""
    confidence = f", confidence from {parallel.confidence}" if parallel.confidence else ""
    return f" (block {parallel.block_size}, anchor slot {slot}, mask {parallel.mask_id}{markov}{confidence})"


def _serial_words(serial: Serial | None) -> str:
    """The switches of a serial drafter that are on; the others are off."""
    if serial is None:
        return ""
    return f" (on: {', '.join(name for name, on in dataclasses.asdict(serial).items() if on) or 'none'})"
