"""The target's greedy replies to many prompts at once, with continuous batching.

One sequence at a time a CPU waits for memory; with many in step the same weights serve as many rows a pass.
A slot whose reply has ended takes the next prompt at once. What training reads of the target, its states,
comes up on the way and is kept, so that no text is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import FINAL_NORM, UserError
from draftboard.measure.fused import Block, FusedForward
from draftboard.measure.target import TargetModel


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt, the greedy reply to it with its stop token, and the tapped states of both, [n, T, H]."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    states: Tensor


@dataclass(slots=True)
class _Slot:
    prompt: tuple[int, ...]
    reply: list[int] = field(default_factory=list)
    ended: bool = False
    """The reply is whole; only its last token has not been through the target yet."""


class BatchedReplies:
    """Greedy decoding of up to `slots` sequences in step, for targets with a fused forward."""

    def __init__(
        self, target: TargetModel, *, slots: int, max_prompt: int, max_new_tokens: int, taps: tuple[int, ...]
    ) -> None:
        """`taps` are the states that are kept, in bfloat16. Raises UserError for a target whose forward is
        not the fused one."""
        forward = target.forward
        if not isinstance(forward, FusedForward):
            raise UserError(
                f"target {target.id!r} runs its module's own forward, which cannot be batched here;"
                " make the file of replies with an engine that serves it"
            )
        self.target, self.forward, self.max_new_tokens = target, forward, max_new_tokens
        self.taps, capacity = taps, max_prompt + max_new_tokens
        shape = (len(forward.blocks), slots, forward.kv_heads, capacity, forward.head_dim)
        self.keys = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self.values = torch.zeros_like(self.keys)
        kept = (slots, capacity, len(taps), target.hidden_size)
        self.states = torch.zeros(kept, dtype=torch.bfloat16, device=target.device)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self.newest = torch.zeros(slots, dtype=torch.int64, device=target.device)

    @torch.inference_mode()
    def answers(self, prompts: Iterable[Sequence[int]]) -> Iterator[Answer]:
        """Answers in the order in which their replies end."""
        waiting = iter(prompts)
        active: dict[int, _Slot] = {}
        while True:
            free = [slot for slot in range(len(self.lengths)) if slot not in active]
            for slot, prompt in zip(free, waiting, strict=False):
                active[slot] = self._begin(slot, tuple(prompt))
            if not active:
                return
            whole = [slot for slot, held in active.items() if held.ended]
            self._step(active)
            yield from (self._answer(slot, active.pop(slot)) for slot in whole)

    def _answer(self, slot: int, held: _Slot) -> Answer:
        length = len(held.prompt) + len(held.reply)
        return Answer(held.prompt, tuple(held.reply), self.states[slot, :length].clone())

    def _begin(self, slot: int, prompt: tuple[int, ...]) -> _Slot:
        self.target.begin(self.taps)
        logits, states = self.target.prefill(torch.tensor(prompt, device=self.target.device))
        cache, length = self.forward.cache, len(prompt)
        self.keys[:, slot, :, :length] = cache.keys[:, :, :length]
        self.values[:, slot, :, :length] = cache.values[:, :, :length]
        self.states[slot, :length] = states
        self.lengths[slot] = length
        held = _Slot(prompt)
        self.newest[slot] = first = int(logits[-1].argmax())
        self._hear(held, first)
        return held

    def _hear(self, held: _Slot, token: int) -> None:
        held.reply.append(token)
        held.ended = len(held.reply) >= self.max_new_tokens or token in self.target.stop_ids

    def _step(self, active: dict[int, _Slot]) -> None:
        rows = torch.tensor(sorted(active), device=self.target.device)
        whole = len(rows) == len(self.lengths)
        tokens = self._forward(slice(None) if whole else rows).argmax(dim=-1)
        self.newest[rows] = tokens
        self.lengths[rows] += 1
        for slot, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if not active[slot].ended:
                self._hear(active[slot], token)

    def _forward(self, rows: Tensor | slice) -> Tensor:
        """Logits [n, V] of the slots in `rows`, whose newest tokens enter the cache."""
        forward, at = self.forward, self.lengths[rows]
        longest = int(at.max()) + 1
        seen = torch.arange(longest, device=at.device)[None] <= at[:, None]
        angles = forward.rotation.at(at)
        x = forward.embed(self.newest[rows])
        states = {0: x}
        for layer, block in enumerate(forward.blocks):
            x = x + self._attention(block, layer, x, rows, at, angles, seen[:, None, None])
            x = states[layer + 1] = x + forward.mlp(block, x)
        normed = states[FINAL_NORM] = forward.final_norm(x)
        index = torch.arange(len(self.lengths), device=at.device)[rows]
        self.states[index, at] = torch.stack([states[tap] for tap in self.taps], dim=1).bfloat16()
        return forward.head(normed)

    def _attention(
        self,
        block: Block,
        layer: int,
        x: Tensor,
        rows: Tensor | slice,
        at: Tensor,
        angles: Tensor,
        seen: Tensor,
    ) -> Tensor:
        forward, count, longest = self.forward, len(x), seen.shape[-1]
        split = [forward.heads, forward.kv_heads, forward.kv_heads]
        query, key, value = torch.split(forward.project(block, x, angles), split, dim=1)
        index = torch.arange(len(self.lengths), device=x.device)[rows]
        self.keys[layer, index, :, at] = key
        self.values[layer, index, :, at] = value
        grouped = query.reshape(count, forward.kv_heads, -1, forward.head_dim)
        keys, values = self.keys[layer, rows, :, :longest], self.values[layer, rows, :, :longest]
        heard = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen)
        return block.out(heard.reshape(count, -1))
