"""The product of a few rows equals the plain product, and a row's result is its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from draftboard.measure import linear
from draftboard.measure.compiled import kernels, kernels_missing
from draftboard.measure.linear import MOST_ROWS, Streamed, native_bfloat16, pack, streams

ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, MOST_ROWS, MOST_ROWS + 1, 130]
SIZES = [(24, 48), (1, 16), (96, 32), (1280, 16), (27, 16), (24, 40), (96, 33), (3, 8)]

compiled = pytest.mark.skipif(kernels() is None, reason=f"NOT RUN: {kernels_missing()}")


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("wide", "deep"), SIZES)
def test_float32_equals_the_plain_product(wide: int, deep: int, bias: bool) -> None:
    weight = torch.randn(wide, deep)
    offset = torch.randn(wide) if bias else None
    product = pack(weight, offset)
    for rows in ROWS:
        x = torch.randn(rows, deep)
        torch.testing.assert_close(product(x), F.linear(x, weight, offset), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_narrow_dtypes_stay_narrow_and_near(dtype: torch.dtype, rows: int) -> None:
    weight, x, offset = torch.randn(24, 48), torch.randn(rows, 48), torch.randn(24)
    found = pack(weight.to(dtype), offset.to(dtype))(x.to(dtype))
    assert found.dtype is dtype
    exact = F.linear(x.to(dtype).float(), weight.to(dtype).float(), offset.to(dtype).float())
    torch.testing.assert_close(found.float(), exact, atol=0.1, rtol=0.02)


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_whoever_shares_its_call(dtype: torch.dtype) -> None:
    """To the last bit: else a verification could say another word than plain decoding."""
    product = pack(torch.randn(100, 64).to(dtype), torch.randn(100).to(dtype))
    x = torch.randn(MOST_ROWS, 64).to(dtype)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in range(1, MOST_ROWS + 1):
        assert torch.equal(product(x[:rows]), alone[:rows])
        assert torch.equal(product(x[-rows:]), alone[-rows:])


@compiled
def test_the_number_of_threads_changes_nothing() -> None:
    product, x, threads = pack(torch.randn(90, 32)), torch.randn(3, 32), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            found.append(product(x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


def test_a_weight_that_is_not_contiguous_is_multiplied_right() -> None:
    weight = torch.randn(48, 24).T
    for x in (torch.randn(5, 48), torch.randn(48, 2).T):
        torch.testing.assert_close(pack(weight)(x), F.linear(x, weight), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [
        ((4, 16), torch.float16, "cpu"),
        ((4, 16), torch.float64, "cpu"),
        ((4, 16), torch.float32, "meta"),
        ((4, 24), torch.float32, "cpu"),
        ((0, 16), torch.float32, "cpu"),
    ],
)
def test_only_what_the_kernel_can_is_its_business(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    weight = torch.empty(shape, dtype=dtype, device=device)
    assert not streams(weight)
    assert not isinstance(pack(weight), Streamed)


def test_without_the_kernels_it_is_the_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "kernels", lambda: None)
    weight, x = torch.randn(4, 16), torch.randn(3, 16)
    assert streams(weight)
    assert torch.equal(pack(weight)(x), F.linear(x, weight))


@compiled
def test_states_of_another_width_are_refused() -> None:
    product = pack(torch.randn(4, 16))
    for shape in ((2, 32), (16,), (1, 2, 16)):
        with pytest.raises(ValueError, match="was given"):
            product(torch.randn(shape))


@pytest.mark.parametrize("native", [True, False])
def test_many_rows_of_bfloat16_are_near_whatever_the_processor(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "native_bfloat16", lambda: native)
    weight, x, bias = (torch.randn(size).to(torch.bfloat16) for size in ((24, 48), (40, 48), (24,)))
    found = pack(weight, bias)(x)
    assert found.dtype is torch.bfloat16
    exact = F.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(found.float(), exact, atol=0.1, rtol=0.02)


def test_native_bfloat16_is_told() -> None:
    assert isinstance(native_bfloat16(), bool)
