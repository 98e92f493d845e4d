"""Facts about losslessness: where an arm's greedy reply left the baseline's, and how close the call was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from draftboard.measure.target import TargetModel
from draftboard.record.records import Divergence, Trace

ReplyKey = tuple[str, int, int]


def key(trace: Trace) -> ReplyKey:
    """What pairs a reply with the baseline's: prompt, turn, repeat."""
    return trace.prompt_id, trace.turn, trace.repeat


def first_difference(own: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The first index at which two replies differ; None when they are the same."""
    if own == other:
        return None
    shared = min(len(own), len(other))
    return next((i for i in range(shared) if own[i] != other[i]), shared)


def differing(baseline: Mapping[ReplyKey, Trace], traces: Iterable[Trace]) -> list[tuple[Trace, Trace, int]]:
    """(baseline reply, arm's reply, first differing position) of every pair that is not identical."""
    found = []
    for trace in traces:
        own = baseline.get(key(trace))
        position = None if own is None else first_difference(own.token_ids, trace.token_ids)
        if own is not None and position is not None:
            found.append((own, trace, position))
    return found


def examine(
    target: TargetModel, precise: TargetModel, baseline: Trace, trace: Trace, position: int
) -> Divergence:
    """The target's view of one divergence: float32 top-2 from `precise`, the gap from `target`'s dtype."""
    prefix = torch.tensor(trace.prompt_ids + trace.token_ids[:position], device=target.device)
    own, other = _at(baseline, position), _at(trace, position)
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


def _at(trace: Trace, position: int) -> int | None:
    """The token at a position, None where the reply has ended."""
    return trace.token_ids[position] if position < len(trace.token_ids) else None


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
