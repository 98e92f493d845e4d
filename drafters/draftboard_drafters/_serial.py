"""Drafting one token after the other from the target's states: the bookkeeping of EAGLE-3 and MTP."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from draftboard.drafter import Draft, DraftSampler, Target, UserError
from draftboard_drafters._layers import Angles, KVCache, Rotary, Sight
from draftboard_drafters.checkpoints import Checkpoint, Served


class Step(Protocol):
    """A method's network: from a feature and the token after it to the state that predicts the next one."""

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [n, H] from the target's states [n, T, Ht]."""

    def __call__(
        self,
        embedded: Tensor,
        feature: Tensor,
        angles: Angles,
        cache: KVCache,
        place: slice,
        mask: Tensor | None,
    ) -> Tensor:
        """States [n, H] from the embeddings [n, H] and features [n, H] of the positions in `place`."""


class SerialDrafter:
    """Features come from the target at committed positions, and from the drafter itself beyond them.

    Row t joins feature t with the embedding of token t+1, stands at position t, and its state predicts token
    t+2. Rows of committed positions see the target's true features. With n of them in the cache, a draft of K
    tokens reads its first token off the last row; row n-1+i then joins the drafter's own state with the i-th
    draft. Those rows are written behind the cache's end: the next commit overwrites them with rows made
    of true features, so none outlives its round.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        served: Served,
        target: Target,
        sampler: DraftSampler,
        step: Step,
        num_speculative_tokens: int | None,
    ) -> None:
        """A drafter around a method's step. K is not bound by the training. Raises UserError for K < 1."""
        assert checkpoint.serial is not None
        k = checkpoint.k if num_speculative_tokens is None else num_speculative_tokens
        if k < 1:
            raise UserError(f"num_speculative_tokens must be at least 1, found {k}")
        shape = checkpoint.geometry
        self.taps, self.weights = checkpoint.taps_of(target.num_layers), served.weights
        self.num_speculative_tokens = k
        self.step, self.vocabulary, self.sampler = step, served.vocabulary, sampler
        self.norm, self.switches = shape.norm(served.tensors["norm.weight"]), checkpoint.serial
        capacity = target.max_context + k
        self.cache = KVCache(
            checkpoint.layers, shape.kv_heads, shape.head_dim, capacity, target.dtype, target.device
        )
        self.rotary = Rotary(checkpoint.rope, shape.head_dim, capacity, target.dtype, target.device)

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Pairs the prompt's features with the tokens after them."""
        self.release()
        self._absorb(tokens[1:], features)

    def propose(self, limit: int) -> Draft:
        """Draws one token after the other, each from its own law."""
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        state = self.state
        for drafted in range(min(limit, self.num_speculative_tokens)):
            if drafted:
                at = self.cache.length + drafted - 1
                state = self._run(tokens[-1], self._recycled(state), slice(at, at + 1))
            token, law = self.vocabulary.draw(self.sampler, self._logits(state))
            tokens.append(token)
            laws += [] if law is None else [law]
        none = torch.empty(0, dtype=torch.int64, device=state.device)
        return Draft(torch.cat([none, *tokens]), torch.cat(laws) if laws else None)

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Pairs the new features with the tokens they predicted."""
        self._absorb(tokens, features)

    def release(self) -> None:
        """Forgets the sequence."""
        self.cache.truncate(0)

    def _absorb(self, tokens: Tensor, features: Tensor) -> None:
        place = self.cache.reserve(len(tokens))
        self.state = self._run(tokens, self.step.fuse(features), place)[-1:]
        self.cache.length = place.stop

    def _run(self, tokens: Tensor, feature: Tensor, place: slice) -> Tensor:
        mask = Sight(causal=True).mask(place, tokens.device)
        embedded = self.vocabulary.embed(tokens)
        return self.step(embedded, feature, self.rotary.at(place), self.cache, place, mask)

    def _recycled(self, state: Tensor) -> Tensor:
        return self.norm(state) if self.switches.recycle_normed else state

    def _logits(self, state: Tensor) -> Tensor:
        return self.vocabulary.logits(self.norm(state) if self.switches.norm_before_head else state)
