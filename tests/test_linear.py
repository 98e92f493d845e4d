"""The product with a weight laid out beforehand equals the plain product, whatever the number of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from draftboard.measure import linear
from draftboard.measure.linear import can_pack, native_bfloat16, pack

ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 130]


@pytest.mark.parametrize("head", [False, True], ids=["product", "head"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("wide", "deep"), [(24, 40), (1, 8), (96, 33), (1280, 16), (27, 8)])
def test_packed_float32_equals_the_plain_product(wide: int, deep: int, bias: bool, head: bool) -> None:
    weight = torch.randn(wide, deep)
    offset = torch.randn(wide) if bias else None
    product = pack(weight, offset, head=head)
    for rows in ROWS:
        x = torch.randn(rows, deep)
        torch.testing.assert_close(product(x), F.linear(x, weight, offset), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_stay_narrow_and_near(dtype: torch.dtype) -> None:
    weight, x, offset = torch.randn(24, 40), torch.randn(9, 40), torch.randn(24)
    found = pack(weight.to(dtype), offset.to(dtype))(x.to(dtype))
    assert found.dtype is dtype
    exact = F.linear(x.to(dtype).float(), weight.to(dtype).float(), offset.to(dtype).float())
    torch.testing.assert_close(found.float(), exact, atol=0.1, rtol=0.02)


def test_a_weight_that_is_not_contiguous_is_packed_right() -> None:
    weight = torch.randn(40, 24).T
    for x in (torch.randn(5, 40), torch.randn(1, 40)):
        for head in (False, True):
            found = pack(weight, head=head)(x)
            torch.testing.assert_close(found, F.linear(x, weight), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.float16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")]
)
def test_only_what_the_hardware_packs_is_packed(dtype: torch.dtype, device: str) -> None:
    assert not can_pack(torch.empty(4, 4, dtype=dtype, device=device))


def test_bfloat16_is_packed_only_where_the_processor_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(4, 4, dtype=torch.bfloat16)
    monkeypatch.setattr(linear, "native_bfloat16", lambda: False)
    assert not can_pack(weight)
    assert torch.equal(pack(weight)(weight), torch.full((4, 4), 4.0, dtype=torch.bfloat16))
    assert isinstance(native_bfloat16(), bool)


def test_a_build_without_the_packed_product_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    weight, x = torch.randn(4, 6), torch.randn(3, 6)
    assert not can_pack(weight)
    assert torch.equal(pack(weight)(x), F.linear(x, weight))
