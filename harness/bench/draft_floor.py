"""T_draft of every drafter of a suite that has weights, beside its own floor: the weights that it reads in a
round over the memory's speed.

    python harness/bench/draft_floor.py [--suite quick] [--tokens 64] [--prompts 3]

What a round reads is counted, not derived: one proposal of K tokens and its commit run under a counter of the
weights that matrix products are given, each time they are given one. So a serial drafter's weights count for
each token, and the target's head where a drafter reads it. T_draft is draft + commit of rounds that drafted
all K tokens, the median. A weight that is read twice in a row may come from the last-level cache the second
time: a T_draft below the floor is no error where the weights fit there.

This is no section of `doctor`: which weights ship with the drafters is the suites' affair, and loading all of
them is not what a look at a machine should cost.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from peers import CONTEXT, print_bandwidth, prompt_ids
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftboard.drafter import Drafter
from draftboard.measure import arms, loading
from draftboard.measure.bandwidth import measure_bandwidth
from draftboard.measure.block_parts import AttentionCall, MlpCall
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.linear import MOST_ROWS, Streamed
from draftboard.measure.machine import BusyMeter
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.steps import Steps
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard.record.suites import load_suite

WEIGHT = {"aten::linear": 1, "aten::matmul": 1, "aten::mm": 1, "aten::bmm": 1, "aten::addmm": 2}
"""Products and the place of their weight among the arguments. Attention's own products lie within its
operator and are not among them."""


class Reads(TorchDispatchMode):
    """Counts the bytes of the weights that matrix products are given, torch's and those of the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._patches = [_counted(self, *way) for way in WAYS]

    def __enter__(self) -> Reads:
        for patch in self._patches:
            patch.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for patch in self._patches:
            patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = WEIGHT.get(func.name().partition(".")[0])
        if place is not None:
            self.bytes += args[place].numel() * args[place].element_size()
        return func(*args, **(kwargs or {}))


def _counted(reads: Reads, kind: type, name: str, size: Callable[[Any, Any], int]) -> Any:
    """A patch of a class's call: it adds what `size(object, first argument)` says and goes on."""
    call = getattr(kind, name)

    def counting(this: Any, first: Any, *rest: Any, **options: Any) -> Any:
        reads.bytes += size(this, first)
        return call(this, first, *rest, **options)

    return mock.patch.object(kind, name, counting)


def _streamed(product: Streamed, x: Tensor) -> int:
    """Many rows become a plain product, which is counted as such."""
    return product.weight.nbytes if 0 < len(x) <= MOST_ROWS else 0


def _steps(steps: Steps, _ids: Tensor) -> int:
    return sum(product.weight.nbytes for products in steps.products.values() for product in products)


def _part(part: AttentionCall | MlpCall, _x: Tensor) -> int:
    return sum(product.weight.nbytes for product in part.products.values())


WAYS: tuple[tuple[type, str, Callable[[Any, Any], int]], ...] = (
    (Streamed, "__call__", _streamed),
    (Steps, "run", _steps),
    (AttentionCall, "__call__", _part),
    (MlpCall, "__call__", _part),
)
"""Compiled calls that read weights, and how many bytes of them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One drafter: K, its weights and what a round reads of weights in bytes, T_draft in milliseconds (None
    where no round drafted all K tokens)."""

    name: str
    k: int
    weights: int
    read: int
    draft_ms: float | None

    def line(self, bandwidth: float) -> str:
        """The row of the table, for bytes per second of memory."""
        floor_ms = self.read / bandwidth * 1e3
        sizes = f"{self.name:<16}{self.k:>3}{self.weights / 1e6:10.1f}{self.read / 1e6:12.1f}{floor_ms:10.2f}"
        if self.draft_ms is None:
            return f"{sizes}{'unknown: no round drafted all K':>32}"
        return f"{sizes}{self.draft_ms:12.2f}{self.draft_ms / floor_ms:8.2f}"


HEAD = f"{'drafter':<16}{'K':>3}{'MB':>10}{'MB a round':>12}{'floor ms':>10}{'T_draft ms':>12}{'times':>8}"


def read_bytes(target: TargetModel, drafter: Drafter, sampler: Sampler, prompt: Tensor) -> int:
    """Bytes of weights that one full proposal and the commit of its first guess read, after a warm round."""
    target.begin(drafter.taps)
    logits, features = target.prefill(prompt)
    first, _ = sampler.draw(logits)
    drafter.prefill(torch.cat([prompt, first]), features)
    last, counted = first, 0
    for _ in range(2):
        with Reads() as proposing:
            draft = drafter.propose(drafter.num_speculative_tokens)
        _, features = target.extend(torch.cat([last, draft.tokens[:1]]))
        with Reads() as committing:
            drafter.commit(draft.tokens[:1], features[:1])
        target.truncate(target.length - 1)
        last, counted = draft.tokens[:1], proposing.bytes + committing.bytes
    drafter.release()
    return counted


def draft_ms(
    target: TargetModel, drafter: Drafter, sampler: Sampler, prompts: list[Tensor], tokens: int
) -> float | None:
    """Median draft + commit of the rounds that drafted all K tokens, in replies to the prompts."""
    clock, times = Clock(target.device), []
    decode(target, drafter, prompts[0], sampler, clock, max_new_tokens=tokens)
    for prompt in prompts:
        reply = decode(target, drafter, prompt, sampler, clock, max_new_tokens=tokens)
        full = (one for one in reply.rounds if one.proposed == drafter.num_speculative_tokens)
        times += [one.draft_ms + one.commit_ms for one in full]
    return statistics.median(times) if times else None


def figures(target: TargetModel, suite: Any, prompts: list[Tensor], tokens: int) -> Iterator[Figure | str]:
    """The suite's drafters with weights, in its order; a line for one that could not be built."""
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    for spec in suite.arms:
        arm = arms.build_arm(spec, suite.plugins, target, sampler, None)
        if arm.drafter is None:
            yield f"{arm.label}: {arm.error}"
        elif arm.weights.bytes:
            with torch.inference_mode():
                read = read_bytes(target, arm.drafter, sampler, prompts[0])
            spent = draft_ms(target, arm.drafter, sampler, prompts, tokens)
            yield Figure(arm.name, arm.drafter.num_speculative_tokens, arm.weights.bytes, read, spent)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=3)
    given = parser.parse_args()
    suite, device = load_suite(given.suite), loading.resolve_device()
    dtype = loading.resolve_dtype(suite.dtype, device)
    target = loading.load_target(suite.target, dtype=dtype, device=device, max_context=CONTEXT)
    found, busy = measure_bandwidth(device, dtype), BusyMeter()
    cache = "not told" if found.cache is None else f"{found.cache / 1e6:.0f} MB"
    print(f"{target.id}, {loading.dtype_name(dtype)}, {torch.get_num_threads()} threads")
    print_bandwidth(found)
    print(f"last-level cache {cache}\n\n{HEAD}")
    for one in figures(target, suite, prompt_ids(target, "chat", given.prompts), given.tokens):
        print(one if isinstance(one, str) else one.line(found.best), flush=True)
    for reason in busy.reasons():
        print(f"warning: {reason}; repeat on a quiet machine")


if __name__ == "__main__":
    main()
