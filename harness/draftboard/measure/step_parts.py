"""What one step of the compiled forward is made of: its products, timed one by one in a step's order, and the
rest by difference."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch

from draftboard.measure.clock import Clock
from draftboard.measure.linear import Streamed
from draftboard.measure.operators import Operator
from draftboard.measure.steps import HEAD, Steps

REST = "norms, rotations, attention and waiting"
_REPEATS = 9


@torch.inference_mode()
def parts_of(steps: Steps, step_ms: float) -> tuple[Operator, ...]:
    """Products of one row by name and shape of weight, the median of a few passes over all blocks, and what
    they leave of a step of `step_ms`: below 0 where the machine was faster before or after. In the order of a
    step, so that no weight is in a cache because it was read just before."""
    passes = [_pass(steps) for _ in range(_REPEATS)][1:]
    found = [
        Operator(f"{name} {list(products[0].weight.shape)}", len(products),
                 statistics.median(one[name] for one in passes))
        for name, products in steps.products.items()
    ]  # fmt: skip
    rest = Operator(REST, 1, step_ms - sum(one.self_ms for one in found))
    return (*sorted(found, key=lambda one: -one.self_ms), rest)


def _pass(steps: Steps) -> dict[str, float]:
    """Milliseconds of all products of a step by name."""
    clock, spent = Clock(torch.device("cpu")), dict.fromkeys(steps.products, 0.0)
    for name, product in _in_order(steps):
        x = torch.zeros(1, product.weight.shape[1], dtype=product.weight.dtype)
        began = clock.now_ms()
        product(x)
        spent[name] += clock.now_ms() - began
    return spent


def _in_order(steps: Steps) -> Iterator[tuple[str, Streamed]]:
    blocks = {name: products for name, products in steps.products.items() if name != HEAD}
    for of_one in zip(*blocks.values(), strict=True):
        yield from zip(blocks, of_one, strict=True)
    yield from ((HEAD, product) for product in steps.products[HEAD])
