"""What one step of the compiled forward is made of: its products, timed one after the other as a step runs
them, and the rest by difference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftboard.measure.clock import Clock
from draftboard.measure.linear import Streamed
from draftboard.measure.operators import Operator
from draftboard.measure.steps import Steps

REST = "norms, rotations, attention and waiting"
_REPEATS = 5


@torch.inference_mode()
def parts_of(steps: Steps, step_ms: float) -> tuple[Operator, ...]:
    """Products of one row by name and shape of weight, the fastest of a few passes over all blocks, and what
    they leave of a step of `step_ms`: below 0 where the machine was faster before or after."""
    found = [_timed(name, products) for name, products in steps.products.items()]
    rest = Operator(REST, 1, step_ms - sum(one.self_ms for one in found))
    return (*sorted(found, key=lambda one: -one.self_ms), rest)


def _timed(name: str, products: list[Streamed]) -> Operator:
    outputs, inputs = products[0].weight.shape
    x = torch.zeros(1, inputs, dtype=products[0].weight.dtype)

    def work() -> None:
        for product in products:
            product(x)

    return Operator(f"{name} {[outputs, inputs]}", len(products), _fastest_ms(work))


def _fastest_ms(work: Callable[[], None]) -> float:
    clock, times = Clock(torch.device("cpu")), []
    for _ in range(_REPEATS):
        began = clock.now_ms()
        work()
        times.append(clock.now_ms() - began)
    return min(times[1:])
