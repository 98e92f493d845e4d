"""Matrix products for few rows: decoding multiplies the same weights with one to a few rows, thousands of
times, and is bound by how fast they stream from memory.

On a CPU a few rows go through a kernel of our own, which reads each weight once and in order, with all
threads; the libraries do not read weights of a few MB that fast. Many rows, and everything elsewhere, are
plain products. Nothing is laid out anew, so a head may share the embedding's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.measure.compiled import Kernels, kernels

Linear = Callable[[Tensor], Tensor]

MOST_ROWS = 32
"""Rows that the kernel takes. It multiplies each row apart, and libraries are faster where there are many."""

VECTOR = 16
"""The kernel's sums are of whole vectors: inputs come in multiples of this."""


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The product with `weight` [out, in]: a function from x [n, in] to [n, out] in the same dtype."""
    fast = kernels() if streams(weight) else None
    if fast is None:
        return _Plain(weight, bias)
    return Streamed(weight, bias, fast)


def streams(weight: Tensor) -> bool:
    """Whether the kernel computes with weights of this place, dtype and shape."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.shape[1] % VECTOR == 0
        and weight.numel() > 0
    )


def many(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, in] times weight [out, in] by torch. Where the processor has no products of bfloat16, they are
    taken in float32: widening the weight costs less than what torch does instead, from a few rows on."""
    if x.dtype is torch.bfloat16 and x.device.type == "cpu" and len(x) > MOST_ROWS and not native_bfloat16():
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return F.linear(x, weight, bias)


@cache
def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and torch.cpu._is_avx512_bf16_supported()


class _Plain:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return many(x, self.weight, self.bias)


class Streamed:
    """A weight [out, in] and a bias [out] where there is one, multiplied by the kernel."""

    def __init__(self, weight: Tensor, bias: Tensor | None, fast: Kernels) -> None:
        """float32 or bfloat16, on the CPU, `in` a multiple of sixteen."""
        self.weight, self.bias = weight.detach().contiguous(), bias
        self.float_bias = None if bias is None else bias.detach().float().contiguous()
        self._fast = fast
        self._facts = self._record()
        self._address = self._facts.ctypes.data

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] to [n, out]. Not for two Python threads at once."""
        rows, dtype = len(x), x.dtype
        if x.dim() != 2 or x.shape[1] != self.weight.shape[1]:
            raise ValueError(f"a product with {tuple(self.weight.shape)} was given {tuple(x.shape)}")
        if not 0 < rows <= MOST_ROWS:
            return many(x, self.weight, self.bias)
        wide = x.float().contiguous()
        out = torch.empty((rows, len(self.weight)), dtype=torch.float32)
        facts = self._facts
        facts["x"], facts["rows"], facts["out"] = wide.data_ptr(), rows, out.data_ptr()
        self._fast.multiply(self._address, torch.get_num_threads())
        return out.to(dtype)

    def _record(self) -> np.ndarray:
        from draftboard.measure.kernels import PRODUCT

        facts = np.zeros(1, PRODUCT)
        facts["weight"], facts["half"] = self.weight.data_ptr(), self.weight.dtype is torch.bfloat16
        facts["outputs"], facts["inner"] = self.weight.shape
        facts["bias"] = address(self.float_bias)
        return facts


def address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers are; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
