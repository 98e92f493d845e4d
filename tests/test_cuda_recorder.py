"""What is asked of torch.cuda to capture a graph, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from draftboard.measure.graphs import CudaRecorder


class FakeCuda:
    """As much of torch.cuda as a recorder calls, noting the order."""

    def __init__(self, patch: pytest.MonkeyPatch, fails: bool = False) -> None:
        self.said: list[str] = []
        self.on, self.fails = "main", fails
        patch.setattr(torch.cuda, "Stream", lambda device: self)
        patch.setattr(torch.cuda, "current_stream", lambda: self.on)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "graph", self.graph)

    def wait_stream(self, other: str) -> None:
        self.said.append(f"wait for {other}")

    def synchronize(self) -> None:
        self.said.append(f"synchronize on {self.on}")

    def replay(self) -> None:
        self.said.append("replay")

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        assert stream is self
        self.on = "side"
        try:
            yield
        finally:
            self.on = "main"

    @contextmanager
    def graph(self, graph: object, pool: str, stream: object) -> Iterator[None]:
        assert graph is stream is self and pool == "pool"
        self.said.append("begin")
        yield
        if self.fails:
            raise torch.AcceleratorError("capture ended badly")
        self.said.append("end")


def test_a_cuda_capture_follows_trials_on_a_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    replay = CudaRecorder(torch.device("cuda")).capture(lambda: cuda.said.append(f"work on {cuda.on}"))
    replay()
    work = "work on side"
    assert cuda.said == ["wait for main", work, work, "begin", work, "end", "synchronize on main", "replay"]


def test_a_failed_cuda_capture_leaves_the_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, fails=True)
    with pytest.raises(torch.AcceleratorError, match="ended badly"):
        CudaRecorder(torch.device("cuda")).capture(lambda: None)
    assert cuda.on == "main" and cuda.said[-1] == "synchronize on main"
