"""Root mean square norm (Zhang and Sennrich, arXiv 1910.07467), plain and zero-centred."""

from __future__ import annotations

from torch import Tensor

from draftboard.measure.norm import rms_norm


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * w over the last axis.

    Zero-centred norms store w - 1. Their sum is kept in float32, because 1 + w in bfloat16 would lose most
    of w; the result has the input's dtype.
    """

    def __init__(self, weight: Tensor, eps: float, *, zero_centred: bool = False) -> None:
        """weight [H]."""
        self.weight = 1 + weight.float() if zero_centred else weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] to the same shape and dtype."""
        return rms_norm(x.to(self.weight.dtype), self.weight, self.eps).to(x.dtype)
