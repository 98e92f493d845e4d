"""Matrix products for few rows: decoding multiplies the same weights with one to a few rows, thousands of
times, and is bound by how fast they stream from memory.

In float32 on a CPU the libraries read such a weight with one thread, or in a layout made for many rows. Cut
into blocks of its outputs, as one batched product, it is read by all threads; nothing is copied, so a head
may share the embedding's memory, and may be worth a second layout of its own. In bfloat16 oneDNN lays the
weight out beforehand. Elsewhere the plain product is the fast one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]

_ROWS_HINT = 8
"""Rows the packed layout is chosen for: about one round's verification."""

_BLOCK = 128
"""Outputs a block has at most: few enough for an even share of the threads, enough to hide the call."""

_FEW_ROWS = 5
"""Up to so many rows the weight is the left factor of the product, which reads it fastest."""

_FILLED = {3: 4, 6: 8, 7: 8}
"""Numbers of rows that are multiplied slower than a few more; rows of zeros make up the difference."""


def pack(weight: Tensor, bias: Tensor | None = None, *, head: bool = False) -> Linear:
    """The product with `weight` [out, in]: a function from x [n, in] to [n, out] in the same dtype.

    `head` is for a product whose result is not multiplied further: its rows may not be contiguous, and a
    second layout of the weight is kept where that makes one row faster.
    """
    if can_cut(weight):
        return _HeadBlocks(weight, bias) if head else _Blocks(weight, bias)
    if can_pack(weight):
        return _Packed(weight, bias)
    return _Plain(weight, bias)


def can_cut(weight: Tensor) -> bool:
    """Whether blocks of this weight are multiplied at once, each by one thread."""
    batched = weight.device.type == "cpu" and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return batched and weight.dtype is torch.float32 and blocks_of(len(weight)) > 1


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


def blocks_of(outputs: int) -> int:
    """Into how many equal blocks so many outputs are cut: the fewest of at most `_BLOCK`, best a multiple of
    the threads; 1 where they have no divisor of use."""
    threads, least = torch.get_num_threads(), -(-outputs // _BLOCK)
    divisors = [count for count in range(least, outputs // 8 + 1) if outputs % count == 0]
    even = [count for count in divisors if count % threads == 0]
    return next(iter([*even, *divisors]), 1)


class _Plain:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Blocks:
    """One batched product over blocks [B, out/B, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, inputs = weight.shape
        self.blocks = weight.detach().contiguous().view(blocks_of(len(weight)), -1, inputs)
        self.turned = self.blocks.transpose(1, 2)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = len(x)
        if rows == 1:
            product = self._one(x)
        elif rows in _FILLED:
            product = self._of(F.pad(x, (0, 0, 0, _FILLED[rows] - rows)), rows)
        else:
            product = self._of(x, rows)
        return product if self.bias is None else product + self.bias

    def _one(self, x: Tensor) -> Tensor:
        # The column's strides decide which kernel runs: as a transposed row it is the fast one.
        return torch.bmm(self.blocks, x.t().expand(len(self.blocks), -1, -1)).view(1, -1)

    def _rows(self, product: Tensor) -> Tensor:
        return product.contiguous()

    def _of(self, x: Tensor, wanted: int) -> Tensor:
        """The first `wanted` rows of the product."""
        rows, count = len(x), len(self.blocks)
        if rows <= _FEW_ROWS:
            left = torch.bmm(self.blocks, x.t().expand(count, -1, -1))
            return self._rows(left.view(self.outputs, rows).t()[:wanted])
        right = torch.bmm(x.expand(count, -1, -1), self.turned)
        return right.transpose(0, 1)[:wanted].reshape(wanted, self.outputs)


class _HeadBlocks(_Blocks):
    """Also laid out input by input, which one row reads at the memory's full speed and several do not. A
    head is worth its size again: it is the largest weight, and often the embedding's memory otherwise."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        threads = torch.get_num_threads()
        shares = threads if self.outputs % threads == 0 else 1
        self.by_input = self.blocks.view(shares, -1, weight.shape[1]).transpose(1, 2).contiguous()

    def _one(self, x: Tensor) -> Tensor:
        return torch.bmm(x.expand(len(self.by_input), -1, -1), self.by_input).view(1, -1)

    def _rows(self, product: Tensor) -> Tensor:
        return product


class _Packed:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS_HINT)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product
