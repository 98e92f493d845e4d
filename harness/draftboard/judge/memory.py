"""Memory beside what must be in memory at least: the weights and the target's cache."""

from __future__ import annotations

from collections.abc import Sequence

from draftboard.judge.telemetry import Figure
from draftboard.record.records import Arm, Memory, RunRecord, TargetRef

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def cache_bytes(target: TargetRef, dtype: str) -> int:
    """Keys and values of every position that the target's cache holds."""
    width = target.layers * target.kv_heads * target.head_dim
    return 2 * width * target.max_context * ITEM_BYTES[dtype]


def loading_ratio(run: RunRecord) -> Figure:
    """The peak while the target was loaded over its weights and cache."""
    return _ratio(run.loading, run.loading_missing, _target_bytes(run))


def arm_ratio(run: RunRecord, arms: Sequence[Arm], arm: Arm) -> Figure:
    """The peak of an arm's replies over the weights of the target and of all the run's arms, which are in
    memory together, and the target's cache."""
    expected = _target_bytes(run) + sum(one.weights.bytes for one in arms)
    return _ratio(arm.memory, arm.memory_missing, expected)


def needed(memory: Memory) -> int:
    """Bytes at the peak that were not in use before the target was loaded."""
    return memory.peak_bytes - memory.before_bytes


def _target_bytes(run: RunRecord) -> int:
    return run.target.weight_bytes + cache_bytes(run.target, run.dtype)


def _ratio(memory: Memory | None, missing: str | None, expected: int) -> Figure:
    if memory is None:
        return Figure(None, "x", 0, missing or "not recorded")
    return Figure(needed(memory) / expected, "x", 1)
