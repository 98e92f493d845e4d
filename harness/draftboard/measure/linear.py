"""A matrix product whose weight is laid out once for the hardware that reads it.

Decoding multiplies the same weights with one to a few rows, thousands of times, and is bound by how fast
they stream from memory. On a CPU oneDNN can lay a weight out in blocks beforehand; the product then runs
near the memory's speed at every number of rows, where the unpacked product may take twice as long at
two rows as at one. Elsewhere the plain product is the fast one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]

_ROWS_HINT = 8
"""Rows the packed layout is chosen for: about one round's verification."""


def can_pack(weight: Tensor) -> bool:
    """Whether this build and this weight's device and dtype have a packed product."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return weight.dtype is torch.float32 or (weight.dtype is torch.bfloat16 and native_bfloat16())


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and torch.cpu._is_avx512_bf16_supported()


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The product with `weight` [out, in]: a function from x [n, in] to [n, out] in the same dtype."""
    if not can_pack(weight):
        return _Plain(weight, bias)
    return _Packed(weight, bias)


class _Plain:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Packed:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS_HINT)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product
