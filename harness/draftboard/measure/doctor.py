"""What this machine can measure: the device, its memory's speed, and what verifying several tokens costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftboard.measure.bandwidth import read_bandwidth
from draftboard.measure.curve import VERIFY_ROWS, verify_curve
from draftboard.measure.loading import dtype_name, load_target, resolve_device, resolve_dtype
from draftboard.measure.machine import BusyMeter, environment
from draftboard.record.records import Environment, TargetRef

_REPEATS = 15


@dataclass(frozen=True, slots=True)
class Report:
    """The findings. Times in milliseconds, bandwidth in bytes per second."""

    environment: Environment
    target: TargetRef
    dtype: str
    context: int
    bandwidth: float
    verify_ms: dict[int, float]
    """Time of one forward by its number of rows, after `context` cached positions."""
    disturbed: tuple[str, ...]

    @property
    def floor_ms(self) -> float:
        """The least time a token can take: every weight read once."""
        return self.target.weight_bytes / self.bandwidth * 1e3

    @property
    def share_of_floor(self) -> float:
        """Floor over measured time of one plain token; 1 is the machine's limit."""
        return self.floor_ms / self.verify_ms[1]


def examine(target: str, dtype: str, device: str, context: int, revision: str | None = None) -> Report:
    """Measures this machine with one target. Takes some seconds."""
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    room = context + max(VERIFY_ROWS)
    model = load_target(target, dtype=kind, device=where, revision=revision, max_context=room)
    busy = BusyMeter()
    with torch.inference_mode():
        bandwidth = read_bandwidth(where, kind)
    curve = verify_curve(model, context, repeats=_REPEATS)
    return Report(
        environment=environment(where),
        target=model.reference(),
        dtype=dtype_name(kind),
        context=context,
        bandwidth=bandwidth,
        verify_ms=curve,
        disturbed=busy.reasons(),
    )
