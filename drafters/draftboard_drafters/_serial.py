"""Drafting one token after the other from the target's states: the bookkeeping of EAGLE-3 and MTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from draftboard.drafter import Draft, DraftSampler, Target, UserError
from draftboard.measure.graphs import Piece, Replays, Results
from draftboard_drafters._layers import (
    KVCache,
    Place,
    Places,
    Rotary,
    Rows,
    Sight,
    blank_numbers,
    numbers_for,
)
from draftboard_drafters.checkpoints import Checkpoint, Served

DRAFT = "draft"
"""The graph of a draft; that of a commit goes by its number of tokens."""


class Step(Protocol):
    """A method's network: from a feature and the token after it to the state that predicts the next one."""

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [n, H] from the target's states [n, T, Ht]."""

    def __call__(self, embedded: Tensor, feature: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """States [n, H] from the embeddings [n, H] and features [n, H] of the rows' positions."""


class SerialDrafter:
    """Features come from the target at committed positions, and from the drafter itself beyond them.

    Row t joins feature t with the embedding of token t+1, stands at position t, and its state predicts token
    t+2. Rows of committed positions see the target's true features. With n of them in the cache, a draft of K
    tokens reads its first token off the last row; row n-1+i then joins the drafter's own state with the i-th
    draft. Those rows are written behind the cache's end: the next commit overwrites them with rows made
    of true features, so none outlives its round.

    A draft is one graph, and a commit of m tokens another.
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
        self.graphs = Replays.on(target.device, capacity)
        self._zeros = partial(torch.zeros, dtype=target.dtype, device=target.device)
        self._sizes = shape.hidden_size, target.hidden_size

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Pairs the prompt's features with the tokens after them."""
        self.release()
        self._absorb(tokens[1:], features)

    def propose(self, limit: int) -> Draft:
        """Draws one token after the other, each from its own law."""
        count, start = min(limit, self.num_speculative_tokens), self.cache.length
        draft = self.graphs.find(DRAFT, start + self.num_speculative_tokens) if count > 0 else None
        if draft is None:
            return Draft(*self._chain(self.state, count, lambda i: slice(start + i, start + i + 1)))
        numbers = numbers_for(self.sampler, count, self.num_speculative_tokens)
        tokens, laws = draft(start, self.state, *numbers)
        return Draft(tokens[:count], None if laws is None else laws[:count])

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Pairs the new features with the tokens they predicted."""
        self._absorb(tokens, features)

    def release(self) -> None:
        """Forgets the sequence."""
        self.cache.truncate(0)

    def prepare(self) -> None:
        """Captures the draft and the commits of 1 to K+1 tokens."""
        if self.graphs.wants(DRAFT):
            self.graphs.capture(self._pieces())

    def captured(self) -> tuple[int | None, str | None]:
        """See `draftboard.drafter.Captured`."""
        return self.graphs.count, self.graphs.missing

    def _absorb(self, tokens: Tensor, features: Tensor) -> None:
        place = self.cache.reserve(len(tokens))
        commit = self.graphs.find(len(tokens), place.stop)
        if commit is None:
            self.state = self._run(tokens, self.step.fuse(features), place)[-1:]
        else:
            (self.state,) = commit(place.start, tokens, features)
        self.cache.length = place.stop

    def _pieces(self) -> Iterator[Piece]:
        k, (own, theirs) = self.num_speculative_tokens, self._sizes
        tokens = self._zeros(k + 1, dtype=torch.int64)
        numbers = blank_numbers(self.sampler, k, tokens.device)
        yield Piece(DRAFT, self._drafted, (self._zeros(1, own), *numbers), rows=k, sees=k > 1)
        for m in range(1, k + 2):
            features = self._zeros(m, len(self.taps), theirs)
            yield Piece(m, self._absorbed, (tokens[:m], features), rows=m)

    def _drafted(self, start: Tensor, width: int, state: Tensor, numbers: Tensor | None = None) -> Results:
        """A whole draft: tokens and laws."""
        count = self.num_speculative_tokens
        return self._chain(state, count, lambda i: Places.after(start + i, 1, width), numbers)

    def _absorbed(self, start: Tensor, width: int, tokens: Tensor, features: Tensor) -> Results:
        """The last state of the positions from `start` on."""
        place = Places.after(start, len(tokens), width)
        return (self._run(tokens, self.step.fuse(features), place)[-1:],)

    def _chain(
        self, state: Tensor, count: int, place: Callable[[int], Place], numbers: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [count] and their laws; the row of the i-th of them stands at `place(i)`."""
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for drafted in range(count):
            if drafted:
                state = self._run(tokens[-1], self._recycled(state), place(drafted - 1))
            own = None if numbers is None else numbers[drafted : drafted + 1]
            token, law = self.vocabulary.draw(self.sampler, self._logits(state), own)
            tokens.append(token)
            laws += [] if law is None else [law]
        none = torch.empty(0, dtype=torch.int64, device=state.device)
        return torch.cat([none, *tokens]), torch.cat(laws) if laws else None

    def _run(self, tokens: Tensor, feature: Tensor, place: Place) -> Tensor:
        rows = Rows(place, Sight(causal=True), self.rotary)
        return self.step(self.vocabulary.embed(tokens), feature, rows, self.cache)

    def _recycled(self, state: Tensor) -> Tensor:
        return self.norm(state) if self.switches.recycle_normed else state

    def _logits(self, state: Tensor) -> Tensor:
        return self.vocabulary.logits(self.norm(state) if self.switches.norm_before_head else state)
