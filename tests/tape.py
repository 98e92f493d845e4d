"""What a CUDA graph does, on a CPU: operators with their numbers, repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from draftboard.measure.clock import Clock


class Tape(TorchDispatchMode):
    """Notes every operator with its arguments and the tensors that it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, found))
        return found

    def replay(self) -> None:
        """Runs the operators again. Whatever Python would decide now, they get the numbers of then, and what
        they return goes to where it went then."""
        for func, args, kwargs, found in self.steps:
            again = func(*args, **kwargs)
            for then, now in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(then, Tensor) and then.data_ptr() != now.data_ptr():
                    then.copy_(now)


class TapeRecorder:
    """Captures onto tapes; `fails_at` is the number of the capture, from 1, that the device refuses."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.captures = self.replays = 0
        self.fails_at = fails_at

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        self.captures += 1
        if self.captures == self.fails_at:
            raise torch.AcceleratorError("CUDA error: operation not permitted\nCompile with more checks")
        with Tape() as tape:
            work()

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay


class Watch(Clock):
    """Notes what `count` says whenever the time is read."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__(torch.device("cpu"))
        self.count, self.seen = count, list[int]()

    def now_ms(self) -> float:
        self.seen.append(self.count())
        return super().now_ms()
