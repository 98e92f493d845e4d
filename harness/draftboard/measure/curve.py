"""What verifying costs: the time of one forward by the number of its rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from draftboard.measure.clock import Clock
from draftboard.measure.target import TargetModel

VERIFY_ROWS = (1, 2, 4, 8, 16, 32)
"""Rows of a forward whose time is measured: one is plain decoding, K + 1 is a round's verification."""

_REPEATS = 9


@torch.inference_mode()
def verify_curve(
    target: TargetModel, context: int, rows: Sequence[int] = VERIFY_ROWS, repeats: int = _REPEATS
) -> dict[int, float]:
    """Median milliseconds of one forward by its number of rows, after `context` cached positions."""
    clock, context = Clock(target.device), max(1, min(context, target.max_context - max(rows)))
    target.begin(())
    target.prefill(torch.zeros(context, dtype=torch.long, device=target.device))
    fitting = [m for m in rows if context + m <= target.max_context]
    curve = {m: _forward_ms(target, clock, context, m, repeats) for m in fitting}
    target.begin(())
    return curve


def _forward_ms(target: TargetModel, clock: Clock, context: int, rows: int, repeats: int) -> float:
    ids, times = torch.zeros(rows, dtype=torch.long, device=target.device), []
    for _ in range(repeats + 1):
        target.truncate(context)
        began = clock.now_ms()
        target.extend(ids)
        times.append(clock.now_ms() - began)
    return round(statistics.median(times[1:]), 4)
