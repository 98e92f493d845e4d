"""What decoding costs: the memory's speed, where verifying stops being flat, operators, the loop's tax."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import profile

from draftboard.measure import bandwidth
from draftboard.measure import operators as operators_module
from draftboard.measure.compiled import kernels_missing
from draftboard.measure.curve import FINE_ROWS, VERIFY_ROWS, flat_until
from draftboard.measure.loop_cost import LoopCost, loop_cost
from draftboard.measure.operators import Operator, fitted, operators, profile_step
from draftboard.measure.quiet import without_lines
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.step_parts import REST, parts_of
from draftboard.record.records import Sampling
from draftboard_drafters import none
from tiny import tiny_target


@pytest.mark.parametrize(
    "verify_ms, limit, last",
    [
        ({1: 10.0, 2: 12.5, 4: 12.6}, 1.25, 2),
        ({1: 10.0, 2: 13.0, 4: 12.0}, 1.25, 1),
        ({4: 11.0, 2: 10.5, 1: 10.0}, 1.25, 4),
        ({1: 10.0, 2: 12.5, 4: 12.6}, 1.1, 1),
        ({1: 10.0}, 1.25, 1),
    ],
)
def test_the_flat_region_ends_before_the_first_forward_over_the_limit(
    verify_ms: dict[int, float], limit: float, last: int
) -> None:
    assert flat_until(verify_ms, limit) == last


def test_the_closer_look_holds_the_rows_of_a_run() -> None:
    assert set(VERIFY_ROWS) <= set(FINE_ROWS) and max(VERIFY_ROWS) == max(FINE_ROWS)


def cache_folder(root: Path, caches: list[tuple[int, str, str]]) -> Path:
    """A core's folder as the kernel writes it."""
    for number, (level, shared, size) in enumerate(caches):
        folder = root / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in (("level", str(level)), ("shared_cpu_list", shared), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    return root


def test_the_last_level_caches_of_all_cores_count_once_each(tmp_path: Path) -> None:
    cores = [
        cache_folder(tmp_path / f"cpu{core}", [(1, f"{core}", "32K"), (3, shared, "1024K")])
        for core, shared in enumerate(("0-1", "0-1", "2-3"))
    ]
    assert bandwidth.cache_of(cores) == 2 * 2**20
    assert bandwidth.cache_of([cache_folder(tmp_path / "odd", [(2, "0", "lots")])]) is None
    assert bandwidth.cache_of([]) is None


def test_what_is_read_outdoes_the_cache_and_fits_the_memory() -> None:
    row = 4096 * 4
    assert bandwidth.block_bytes(None, 2**40) == bandwidth.LEAST_BYTES
    assert bandwidth.block_bytes(2**30, 2**40) == 4 * 2**30
    assert bandwidth.block_bytes(2**30, 2**30) == 2**29
    assert bandwidth.block_bytes(None, 2**40, bandwidth.LEAST_BYTES_GPU) == 2**32
    assert bandwidth.block_bytes(3 * row + 1, 10**9) % row == 0 == bandwidth.block_bytes(None, 10**9) % row
    assert bandwidth.block_bytes(None, 0) == row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_read_the_whole_block(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "block_bytes", lambda cache, free, least: 4096 * 64)
    monkeypatch.setattr(bandwidth, "_fastest_ms", lambda device, work: float(work().numel()))
    found = bandwidth.measure_bandwidth(torch.device("cpu"), dtype)
    rows = 4096 * 64 / dtype.itemsize / 4096
    assert found.size / found.read * 1e3 == pytest.approx(1)
    assert found.size / found.product * 1e3 == pytest.approx(rows)
    assert found.best == max(found.read, found.product)


def event(key: str, microseconds: float, kind: Any = DeviceType.CPU, **facts: Any) -> SimpleNamespace:
    given = {"count": 4, "input_shapes": [], "self_device_time_total": 0.0, **facts}
    return SimpleNamespace(key=key, self_cpu_time_total=microseconds, device_type=kind, **given)


def test_operators_are_told_apart_by_the_largest_shape_and_counted_per_step() -> None:
    events = [
        event("small", 100.0, input_shapes=[[1, 3], [], [1]]),
        event("product", 8000.0, input_shapes=[[1, 3], [50, 3], []], count=2),
        event("product", 4000.0, input_shapes=[[1, 3], [3, 3]]),
        event("view", 0.0),
        event("kernel", 0.0, DeviceType.CUDA, self_device_time_total=6000.0, input_shapes=None),
    ]
    assert operators(events, 2, on_gpu=False) == (
        Operator("product [50, 3]", 1, 4.0),
        Operator("product [3, 3]", 2, 2.0),
        Operator("small [1, 3]", 2, 0.05),
    )
    assert operators(events, 2, on_gpu=True) == (Operator("kernel", 2, 3.0),)


def test_what_does_not_fit_is_one_row_and_nothing_is_lost() -> None:
    found = tuple(Operator(str(i), 1, 10.0 - i) for i in range(6))
    assert fitted(found, 6) == found
    short = fitted(found, 3)
    assert [one.name for one in short] == ["0", "1", "4 others"]
    assert sum(one.self_ms for one in short) == sum(one.self_ms for one in found)
    assert short[-1].calls == 4


@pytest.mark.usefixtures("torch_only")
def test_one_step_is_profiled_and_the_cache_left_empty() -> None:
    target = tiny_target()
    found = profile_step(target, 8, steps=2)
    layers = target.num_layers
    products = [one for one in found if "linear" in one.name or "mm" in one.name]
    assert sum(one.calls for one in products) >= 4 * layers + 1
    assert all(one.calls > 0 and one.self_ms > 0 for one in found)
    assert target.length == 0


def test_a_compiled_step_is_its_products_and_the_rest() -> None:
    steps = tiny_target().forward.steps  # type: ignore[attr-defined]
    if steps is None:
        pytest.skip(f"NOT RUN: {kernels_missing()}")
    found = parts_of(steps, 50.0)
    assert sorted((one.name, one.calls) for one in found[:-1]) == [
        ("down [32, 64]", 3),
        ("gate_up [128, 32]", 3),
        ("head [96, 32]", 1),
        ("out [32, 64]", 3),
        ("qkv [128, 32]", 3),
    ]
    assert found[-1].name == REST and sum(one.self_ms for one in found) == pytest.approx(50.0)
    assert all(one.self_ms > 0 for one in found)


def test_the_profilers_own_lines_are_not_printed_and_others_are(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes to standard error from compiled code; here it does so in every version of torch."""

    @contextmanager
    def chatty(**options: Any) -> Iterator[profile]:
        os.write(2, b"USDT:2026 profiler_start\n")
        with profile(**options) as seen:
            yield seen
        os.write(2, b"ERROR: no counters\nUSDT:2026 profiler_stop\n")

    monkeypatch.setattr(operators_module, "profile", chatty)
    assert profile_step(tiny_target(), 8, steps=1)
    assert capfd.readouterr().err == "ERROR: no counters\n"


def test_standard_error_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), without_lines("USDT:"):
        os.write(2, b"before\n")
        raise ZeroDivisionError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"


def test_a_closed_standard_error_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with without_lines("USDT:"):
        done = True
    assert done


class Watched:
    """A target that counts its forwards of one row."""

    def __init__(self, target: Any) -> None:
        self.target, self.rows = target, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def extend(self, ids: torch.Tensor) -> Any:
        self.rows.append((len(ids), self.target.length))
        return self.target.extend(ids)


def test_the_loop_and_the_bare_forwards_go_over_the_same_positions() -> None:
    target: Any = Watched(tiny_target())
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    cost = loop_cost(target, none.build(target, sampler), sampler, context=5, tokens=4, repeats=1)
    assert target.rows == [(1, at) for at in range(5, 9)] * 4
    assert cost.loop_ms > 0 and cost.bare_ms > 0


def test_the_tax_is_the_difference_in_ms_and_as_a_share() -> None:
    cost = LoopCost(loop_ms=11.0, bare_ms=10.0)
    assert (cost.tax_ms, cost.tax) == (1.0, 0.1)


def test_a_target_that_may_stop_early_is_refused() -> None:
    target = tiny_target(stop_ids=frozenset({3}))
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    with pytest.raises(ValueError, match="stop"):
        loop_cost(target, none.build(target, sampler), sampler, context=5, tokens=4, repeats=1)
