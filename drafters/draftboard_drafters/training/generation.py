"""The target's greedy replies to many prompts at once, with continuous batching.

One sequence at a time a CPU waits for memory; with 64 in step the same weights serve 64 rows a pass. A slot
whose reply has ended takes the next prompt at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.fused import Block, FusedForward
from draftboard.measure.target import TargetModel
from draftboard_drafters.training.replies import Pair


@dataclass(slots=True)
class _Slot:
    prompt: tuple[int, ...]
    reply: list[int] = field(default_factory=list)


class BatchedReplies:
    """Greedy decoding of up to `slots` sequences in step, for targets with a fused forward."""

    def __init__(self, target: TargetModel, *, slots: int, max_prompt: int, max_new_tokens: int) -> None:
        """Raises UserError for a target whose forward is not the fused one."""
        forward = target.forward
        if not isinstance(forward, FusedForward):
            raise UserError(
                f"target {target.id!r} runs its module's own forward, which cannot be batched here;"
                " make the file of replies with an engine that serves it"
            )
        self.target, self.forward, self.max_new_tokens = target, forward, max_new_tokens
        capacity = max_prompt + max_new_tokens
        shape = (len(forward.blocks), slots, forward.kv_heads, capacity, forward.head_dim)
        self.keys = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self.newest = torch.zeros(slots, dtype=torch.int64, device=target.device)

    @torch.inference_mode()
    def replies(self, prompts: Iterable[Sequence[int]]) -> Iterator[Pair]:
        """Pairs of prompt and reply in the order in which the replies end. A reply keeps its stop token."""
        waiting = iter(prompts)
        active: dict[int, _Slot] = {}
        while True:
            free = [slot for slot in range(len(self.lengths)) if slot not in active]
            for slot, prompt in zip(free, waiting, strict=False):
                active[slot] = self._begin(slot, tuple(prompt))
            if not active:
                return
            unfinished = {slot: held for slot, held in active.items() if not self._ended(held)}
            yield from (
                (held.prompt, tuple(held.reply)) for slot, held in active.items() if slot not in unfinished
            )
            active = unfinished
            if active:
                self._step(active)

    def _ended(self, slot: _Slot) -> bool:
        return len(slot.reply) >= self.max_new_tokens or slot.reply[-1] in self.target.stop_ids

    def _begin(self, slot: int, prompt: tuple[int, ...]) -> _Slot:
        self.target.begin(())
        logits, _ = self.target.prefill(torch.tensor(prompt, device=self.target.device))
        cache, length = self.forward.cache, len(prompt)
        self.keys[:, slot, :, :length] = cache.keys[:, :, :length]
        self.values[:, slot, :, :length] = cache.values[:, :, :length]
        self.lengths[slot] = length
        self.newest[slot] = first = int(logits[-1].argmax())
        return _Slot(prompt, [first])

    def _step(self, active: dict[int, _Slot]) -> None:
        rows = torch.tensor(sorted(active), device=self.target.device)
        whole = len(rows) == len(self.lengths)
        tokens = self._forward(slice(None) if whole else rows).argmax(dim=-1)
        self.newest[rows] = tokens
        self.lengths[rows] += 1
        for slot, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            active[slot].reply.append(token)

    def _forward(self, rows: Tensor | slice) -> Tensor:
        """Logits [n, V] of the slots in `rows`, whose newest tokens enter the cache."""
        forward, at = self.forward, self.lengths[rows]
        longest = int(at.max()) + 1
        seen = torch.arange(longest, device=at.device)[None] <= at[:, None]
        angles = forward.rotation.at(at)
        x = forward.embed(self.newest[rows])
        for layer, block in enumerate(forward.blocks):
            x = x + self._attention(block, layer, x, rows, at, angles, seen[:, None, None])
            x = x + forward.mlp(block, x)
        return forward.head(forward.final_norm(x))

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
