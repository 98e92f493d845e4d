"""What the decoding loop adds to the target's forward: the engine's own tax.

The same prompt is continued twice: by the whole loop with the drafter that proposes nothing, and by bare
forwards of one row, with no choice, comparison or clock between them. Both fill the same positions of the
same cache, in turns, so what differs is the loop.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard.drafter import Drafter
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.sampling import Sampler
from draftboard.measure.target import TargetModel


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Milliseconds a token: of the loop, and of the forwards in it by themselves."""

    loop_ms: float
    bare_ms: float

    @property
    def tax_ms(self) -> float:
        """What the loop adds to a token."""
        return self.loop_ms - self.bare_ms

    @property
    def tax(self) -> float:
        """The same as a share of the bare forward."""
        return self.tax_ms / self.bare_ms


def loop_cost(
    target: TargetModel, drafter: Drafter, sampler: Sampler, context: int, tokens: int, repeats: int
) -> LoopCost:
    """Medians over `repeats` of replies of `tokens` + 1 tokens after `context` cached positions; the first of
    them comes from the prefill. The target must have no stop tokens, so that both go the whole way.
    """
    if target.stop_ids:
        raise ValueError("a reply that may stop early is no measure of the loop; take the stop ids away")
    clock, prompt = Clock(target.device), torch.zeros(context, dtype=torch.long, device=target.device)
    loops, bares = [], []
    for _ in range(repeats + 1):
        reply = decode(target, drafter, prompt, sampler, clock, max_new_tokens=tokens + 1)
        loops.append(reply.decode_ms / len(reply.rounds))
        bares.append(_bare_ms(target, clock, prompt, tokens) / tokens)
    return LoopCost(statistics.median(loops[1:]), statistics.median(bares[1:]))


@torch.inference_mode()
def _bare_ms(target: TargetModel, clock: Clock, prompt: Tensor, tokens: int) -> float:
    target.begin(())
    target.prefill(prompt)
    began = clock.now_ms()
    for _ in range(tokens):
        target.extend(prompt[:1])
    return clock.now_ms() - began
