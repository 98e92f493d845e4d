"""What verifying costs: the time of one forward by the number of its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch

from draftboard.measure.clock import Clock
from draftboard.measure.target import TargetModel

VERIFY_ROWS = (1, 2, 4, 8, 16, 32)
"""Rows of a forward whose time a run measures: one is plain decoding, K + 1 is a round's verification."""

FINE_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
"""The same for a closer look, dense where most drafters verify."""

FLAT_LIMIT = 1.25
"""A forward counts as flat while it costs at most this many times one row: verifying is then nearly free."""

_REPEATS = 9


@torch.inference_mode()
def verify_curve(
    target: TargetModel, context: int, rows: Sequence[int] = VERIFY_ROWS, repeats: int = _REPEATS
) -> dict[int, float]:
    """Median milliseconds of one forward by its number of rows, after `context` cached positions."""
    clock, context = Clock(target.device), max(1, min(context, target.max_context - max(rows)))
    fitting = [m for m in rows if context + m <= target.max_context]
    target.begin(())
    target.prepare(fitting)
    target.prefill(torch.zeros(context, dtype=torch.long, device=target.device))
    curve = {m: _forward_ms(target, clock, context, m, repeats) for m in fitting}
    target.begin(())
    return curve


def flat_until(verify_ms: Mapping[int, float], limit: float = FLAT_LIMIT) -> int:
    """The m at which the curve leaves the flat region: the largest measured m up to which every measured
    forward costs at most `limit` times that of one row.

    `verify_ms` holds m = 1. Where the answer is its largest m, the region goes on beyond what was measured.
    """
    last = 1
    for rows in sorted(verify_ms):
        if verify_ms[rows] > limit * verify_ms[1]:
            break
        last = rows
    return last


def _forward_ms(target: TargetModel, clock: Clock, context: int, rows: int, repeats: int) -> float:
    ids, times = torch.zeros(rows, dtype=torch.long, device=target.device), []
    for _ in range(repeats + 1):
        target.truncate(context)
        began = clock.now_ms()
        target.extend(ids)
        times.append(clock.now_ms() - began)
    return round(statistics.median(times[1:]), 4)
