"""Where the host would wait for a GPU: tensors that are read as numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard.measure import rehearsal
from draftboard.measure.decode import decode
from scripted import Scripted, always
from shipped import MODULES, maker
from tape import Watch
from tiny import tiny_target
from watched import PROMPT


class Reads(torch.overrides.TorchFunctionMode):
    """Counts what makes the host wait for a device: tensors read as numbers or copied to the host."""

    READING = frozenset({"tolist", "item", "__int__", "__bool__", "__float__", "__index__", "cpu", "numpy"})

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.READING:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MODULES)
@torch.inference_mode()
def test_no_proposal_waits_for_the_device(name: str) -> None:
    target = tiny_target()
    drafter = maker(name, 3)(target, rehearsal.sampler(target))
    with rehearsal.Walk(drafter, target, PROMPT) as walk:
        for new in ([4], [7, 2]):
            with Reads() as watch:
                walk.propose()
            assert watch.reads == []
            walk.commit(new)


class Repeating(Scripted):
    """Proposes the same and reads nothing of what it is told."""

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        self.guesses = tokens[:2]

    def propose(self, limit: int) -> Draft:
        return Draft(self.guesses[:limit])

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        pass


def test_the_loop_waits_for_nothing_but_the_verdict() -> None:
    """In each round the host reads once: the target's ids and the guesses come in one transfer."""
    target, reads = tiny_target(), Reads()
    clock = Watch(lambda: len(reads.reads))
    with reads:
        reply = decode(
            target,
            Repeating(always()),
            torch.tensor(PROMPT),
            rehearsal.sampler(target),
            clock,
            max_new_tokens=20,
        )
    _, started, ended = clock.seen
    assert len(reply.rounds) > 5
    assert reads.reads[started:ended] == ["tolist"] * len(reply.rounds)
