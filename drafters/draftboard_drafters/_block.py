"""Drafting a block in one forward from the target's states: the bookkeeping of DFlash and DSpark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import Draft, DraftSampler, Target, UserError
from draftboard.measure.graphs import Piece, Replays, Results
from draftboard_drafters._layers import (
    DecoderLayer,
    KVCache,
    Place,
    Places,
    Rotary,
    Rows,
    blank_numbers,
    index_of,
    joined,
    numbers_for,
    part,
    rotate,
)
from draftboard_drafters.checkpoints import Checkpoint, Served

DRAFT = "draft"
"""The graph of a draft; that of a commit goes by its number of tokens."""


class Backbone:
    """The stack and its context, one sequence at a time.

    The cache holds keys and values of committed positions only, rotated and normed; those of a block are
    written behind its end and overwritten by the next context.
    """

    def __init__(self, checkpoint: Checkpoint, served: Served, target: Target, drafts: int) -> None:
        """A stack that drafts `drafts` tokens a block."""
        assert checkpoint.parallel is not None
        shape, tensors, block = checkpoint.geometry, served.tensors, checkpoint.parallel
        self.geometry, self.sights = shape, block.sights
        self.first = 0 if block.anchor_predicts else 1
        masks = drafts + self.first - 1
        self.masks = torch.full((masks,), block.mask_id, dtype=torch.int64, device=target.device)
        self.slots = masks + 1
        self.embed = served.vocabulary.embed
        self.fuse, self.context_norm = joined(tensors, "fc"), shape.norm(tensors["hidden_norm.weight"])
        stack = [part(tensors, f"layers.{layer}.") for layer in range(checkpoint.layers)]
        self.layers = [DecoderLayer(parameters, shape) for parameters in stack]
        self.norm = shape.norm(tensors["norm.weight"])
        # Every layer projects the same context, so all their keys and values are one product.
        self.context_kv = joined(
            {f"{i}.{name}": tensor for i, layer in enumerate(stack) for name, tensor in layer.items()},
            *(f"{i}.self_attn.{name}_proj" for i in range(checkpoint.layers) for name in "kv"),
        )
        self.k_norms = torch.stack([layer.attention.k_norm.weight for layer in self.layers])
        capacity = target.max_context + self.slots
        self.cache = KVCache(
            checkpoint.layers, shape.kv_heads, shape.head_dim, capacity, target.dtype, target.device
        )
        self.rotary = Rotary(checkpoint.rope, shape.head_dim, capacity, target.dtype, target.device)
        self.graphs = Replays.on(target.device, capacity)

    def forget(self) -> None:
        """Drops the sequence."""
        self.cache.truncate(0)

    def absorb(self, tokens: Tensor, features: Tensor) -> None:
        """Adds the context of m committed positions, features [m, T, H]; the newest token is the anchor."""
        self.anchor = tokens[-1:]
        place = self.cache.reserve(len(features))
        replay = self.graphs.find(len(features), place.stop)
        if replay is None:
            self._write(features, place)
        else:
            replay(place.start, features)
        self.cache.length = place.stop

    def block(self) -> Tensor:
        """States [K, H] past the final norm, one for each token to draft."""
        return self._states(self.anchor, self.cache.reserve(self.slots))

    def block_at(self, anchor: Tensor, start: Tensor, width: int) -> Tensor:
        """`block` of another anchor, int64 [1], which stands at `start`, int64 []: for a graph."""
        return self._states(anchor, Places.after(start, self.slots, width))

    def absorb_at(self, start: Tensor, width: int, features: Tensor) -> Results:
        """What `absorb` writes, from position `start` on: for a graph. Nothing comes back."""
        self._write(features, Places.after(start, len(features), width))
        return ()

    def _write(self, features: Tensor, place: Place) -> None:
        shape, at = self.geometry, index_of(place)
        context = self.context_norm(self.fuse(features.flatten(1)))
        kv = self.context_kv(context).view(len(context), len(self.layers), 2, shape.kv_heads, shape.head_dim)
        keys = F.rms_norm(kv[:, :, 0], (shape.head_dim,), None, shape.eps) * self.k_norms[:, None]
        turned = rotate(keys.flatten(1, 2), self.rotary.at(at)).view_as(keys)
        self.cache.keys[:, :, at] = turned.permute(1, 2, 0, 3)
        self.cache.values[:, :, at] = kv[:, :, 1].permute(1, 2, 0, 3)

    def _states(self, anchor: Tensor, place: Place) -> Tensor:
        x = self.embed(torch.cat([anchor, self.masks]))
        rows = {sight: Rows(place, sight, self.rotary) for sight in set(self.sights)}
        for index, (layer, sight) in enumerate(zip(self.layers, self.sights, strict=True)):
            x = layer(x, rows[sight], self.cache, index)
        return self.norm(x)[self.first :]


class BlockDrafter(ABC):
    """A drafter whose guesses are read off the states of one block."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        served: Served,
        target: Target,
        sampler: DraftSampler,
        num_speculative_tokens: int | None,
    ) -> None:
        """A drafter from a checkpoint that fits the target. Raises UserError for a K beyond its training."""
        self.taps, self.weights = checkpoint.taps, served.weights
        self.num_speculative_tokens = drafts_asked(checkpoint, num_speculative_tokens)
        self.backbone = Backbone(checkpoint, served, target, self.num_speculative_tokens)
        self.vocabulary, self.sampler = served.vocabulary, sampler
        self._tapped = torch.empty(0, len(self.taps), target.hidden_size, dtype=target.dtype)

    @abstractmethod
    def guess(self, hidden: Tensor, anchor: Tensor, numbers: Tensor | None) -> Results:
        """The parts of a `Draft` of K tokens from the states [K, H] of the block of `anchor`, int64 [1].
        `numbers` float64 [K] are what to draw by, else the sampler takes its own."""

    def kept(self, draft: Draft) -> int:
        """How many guesses of a draft are handed over."""
        return self.num_speculative_tokens

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Takes the prompt as context."""
        self.release()
        self.backbone.absorb(tokens, features)

    def propose(self, limit: int) -> Draft:
        """Drafts the block and hands over its first tokens, at most `limit`."""
        block, k = self.backbone, self.num_speculative_tokens
        place = block.cache.reserve(block.slots)
        replay = block.graphs.find(DRAFT, place.stop)
        if replay is None:
            parts = self.guess(block.block(), block.anchor, None)
        else:
            parts = replay(place.start, block.anchor, *numbers_for(self.sampler, k, k))
        draft = Draft(*parts)
        kept = min(limit, self.kept(draft))
        return Draft(
            draft.tokens[:kept],
            None if draft.probs is None else draft.probs[:kept],
            None if draft.confidence is None else draft.confidence[:kept],
        )

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Takes the committed positions as context."""
        self.backbone.absorb(tokens, features)

    def release(self) -> None:
        """Forgets the context."""
        self.backbone.forget()

    def prepare(self) -> None:
        """Captures the draft and the commits of 1 to K+1 tokens."""
        if self.backbone.graphs.wants(DRAFT):
            self.backbone.graphs.capture(self._pieces())

    def captured(self) -> tuple[int | None, str | None]:
        """See `draftboard.drafter.Captured`."""
        return self.backbone.graphs.count, self.backbone.graphs.missing

    def _pieces(self) -> Iterator[Piece]:
        k, block, device = self.num_speculative_tokens, self.backbone, self.backbone.masks.device
        anchor = torch.zeros(1, dtype=torch.int64, device=device)
        numbers = blank_numbers(self.sampler, k, device)
        yield Piece(DRAFT, self._drafted, (anchor, *numbers), rows=block.slots)
        for m in range(1, k + 2):
            features = self._tapped.new_zeros(m, *self._tapped.shape[1:], device=device)
            yield Piece(m, block.absorb_at, (features,), rows=m, sees=False)

    def _drafted(self, start: Tensor, width: int, anchor: Tensor, numbers: Tensor | None = None) -> Results:
        """The parts of a whole draft."""
        return self.guess(self.backbone.block_at(anchor, start, width), anchor, numbers)


def drafts_asked(checkpoint: Checkpoint, num_speculative_tokens: int | None) -> int:
    """K for this run: the checkpoint's own, or fewer. Raises UserError for more than it was trained for."""
    k = checkpoint.k if num_speculative_tokens is None else num_speculative_tokens
    if not 1 <= k <= checkpoint.k:
        raise UserError(
            f"num_speculative_tokens is {k}, and {checkpoint.path} was trained for blocks of {checkpoint.k}"
            f" drafts; choose 1 to {checkpoint.k}"
        )
    return k
