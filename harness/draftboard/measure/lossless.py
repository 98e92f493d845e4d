"""Facts about losslessness: where an arm's greedy reply left the baseline's, and how close the call was."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftboard.measure.target import TargetModel
from draftboard.record.records import Divergence, Trace
from draftboard.record.replies import token_at


def examine(
    target: TargetModel, precise: TargetModel, baseline: Trace, trace: Trace, position: int
) -> Divergence:
    """The target's view of one divergence: float32 top-2 from `precise`, the gap from `target`'s dtype."""
    prefix = torch.tensor(trace.prompt_ids + trace.token_ids[:position], device=target.device)
    own, other = token_at(baseline, position), token_at(trace, position)
    top2 = _logits(precise, prefix).topk(2).indices.tolist()
    gap = None if own is None or other is None else _gap(_logits(target, prefix), own, other)
    return Divergence(
        prompt_id=trace.prompt_id,
        turn=trace.turn,
        repeat=trace.repeat,
        position=position,
        baseline_token=own,
        arm_token=other,
        float32_top2=(top2[0], top2[1]),
        gap=None if gap is None else gap[0],
        gap_ulp=None if gap is None else gap[1],
    )


@torch.inference_mode()
def _logits(target: TargetModel, prefix: Tensor) -> Tensor:
    """Logits [V] after the prefix, in the target's dtype."""
    target.begin(())
    logits, _ = target.prefill(prefix)
    return logits[0]


def _gap(logits: Tensor, one: int, other: int) -> tuple[float, float]:
    """Distance of two tokens' logits, absolute and in units in the last place of the larger one."""
    pair = logits[[one, other]]
    gap = float((pair[0].double() - pair[1].double()).abs())
    size = float(pair.double().abs().max())
    ulp = 2.0 ** math.floor(math.log2(size)) * torch.finfo(logits.dtype).eps if size > 0 else 1.0
    return gap, gap / ulp
