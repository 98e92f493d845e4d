"""Memory in words."""

from __future__ import annotations

from collections.abc import Sequence

from draftboard.judge.memory import arm_ratio, loading_ratio, needed
from draftboard.judge.telemetry import Figure
from draftboard.record.records import Arm, Memory, RunRecord


def arm_words(run: RunRecord, arms: Sequence[Arm], arm: Arm) -> str:
    """The peak of an arm's replies and what it is made of, or why it is not known."""
    return _words(arm.memory, arm_ratio(run, arms, arm), "weights of the target and all arms, and the cache")


def loading_words(run: RunRecord) -> str:
    """The peak while the target was loaded, or why it is not known."""
    return _words(run.loading, loading_ratio(run), "the target's weights and cache")


def _words(memory: Memory | None, ratio: Figure, of: str) -> str:
    if memory is None or ratio.value is None:
        return f"not known: {ratio.missing}"
    over, before = needed(memory) / 1e6, memory.before_bytes / 1e6
    peak = f"{over:,.1f} MB at the peak, over {before:,.1f} MB before the target was loaded"
    return f"{peak}: {ratio.value:.2f} x {of}"
