"""Root mean square norm (Zhang and Sennrich, arXiv 1910.07467) in the fewest operators."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; x [..., H], weight [H], both in one dtype."""
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    # PyTorch's own is no single operator on a CPU: for one row it costs a third to twice as much as these. A
    # number among the operands would be turned into a tensor each time.
    exact = x.float()
    length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps), length, length, value=1 / x.shape[-1]).rsqrt_()
    if exact is x:
        return (x * scale).mul_(weight)
    return exact.mul_(scale).to(x.dtype).mul_(weight)


@cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)
