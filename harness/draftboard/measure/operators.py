"""Where the time of one decode step goes: operator by operator, as torch's profiler sees it, or product by
product, where a step is one call of compiled code that a profiler does not look into."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from draftboard.measure.quiet import without_lines
from draftboard.measure.target import TargetModel

STEPS = 8
"""Steps that are profiled; figures are means over them."""

_WARM = 2


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of work in a step: an operator at one shape on a CPU, a kernel on a GPU.

    `calls` and `self_ms` are those of one step; `self_ms` leaves out what it called.
    """

    name: str
    calls: float
    self_ms: float


@torch.inference_mode()
def profile_step(target: TargetModel, context: int, steps: int = STEPS) -> tuple[Operator, ...]:
    """What a forward of one row after `context` cached positions is made of, the longest first.

    The profiler slows the small operators down more than the large ones: the shares are for orientation, and
    no figure of this reaches a record.
    """
    activities = [ProfilerActivity.CPU]
    if target.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    target.begin(())
    target.prefill(torch.zeros(context, dtype=torch.long, device=target.device))
    _step(target, context, _WARM)
    # Kineto says when it begins and ends, on standard error and at every level of its log.
    with without_lines("USDT:"), profile(activities=activities, record_shapes=True) as seen:
        _step(target, context, steps)
        if target.device.type == "cuda":
            torch.cuda.synchronize()
    target.begin(())
    events = seen.key_averages(group_by_input_shape=True)
    return operators(events, steps, on_gpu=target.device.type == "cuda")


def operators(events: Iterable[Any], steps: int, on_gpu: bool) -> tuple[Operator, ...]:
    """The profiler's averages as operators of one step, the longest first.

    On a GPU only kernels count: an operator's time on the host overlaps with theirs, and of a captured graph
    only the kernels are seen at all.
    """
    kind = "CUDA" if on_gpu else "CPU"
    found = [_operator(event, steps, on_gpu) for event in events if event.device_type.name == kind]
    return tuple(sorted((one for one in found if one.self_ms > 0), key=lambda one: -one.self_ms))


def fitted(found: Iterable[Operator], rows: int) -> tuple[Operator, ...]:
    """At most `rows` operators: the first ones, and all others as one where they do not fit."""
    every = tuple(found)
    if len(every) <= rows:
        return every
    rest = every[rows - 1 :]
    together = Operator(
        f"{len(rest)} others", sum(one.calls for one in rest), sum(one.self_ms for one in rest)
    )
    return (*every[: rows - 1], together)


def _operator(event: Any, steps: int, on_gpu: bool) -> Operator:
    microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
    return Operator(_name(event), event.count / steps, microseconds / 1e3 / steps)


def _name(event: Any) -> str:
    """The operator and the shape of its largest tensor, which for a product is the weight."""
    shapes = [shape for shape in event.input_shapes or () if shape and isinstance(shape[0], int)]
    name = str(event.key)
    return f"{name} {max(shapes, key=math.prod)}" if shapes else name


def _step(target: TargetModel, context: int, times: int) -> None:
    row = torch.zeros(1, dtype=torch.long, device=target.device)
    for _ in range(times):
        target.truncate(context)
        target.extend(row)
