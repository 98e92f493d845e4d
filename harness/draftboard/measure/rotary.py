"""Turning queries and keys by their positions (Su et al., "RoFormer", arXiv 2104.09864), in place.

A rotation acts on pairs of numbers. Checkpoints pair the first half of a head with its second half. In
float32 the pairs are laid side by side, by reordering the rows of the query and key products once; a pair is
then one complex number and the rotation one complex product. Scores do not change: queries and keys are
reordered alike.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Rotation(Protocol):
    """The angles of positions 0 to capacity-1 and how heads are turned by them."""

    order: Tensor
    """int64 [head_dim]: which row of the checkpoint's head is at each place of a head here."""

    stride: int
    partner: int
    """The numbers i * stride and i * stride + partner of a head turn together."""

    def at(self, positions: slice | Tensor) -> Tensor:
        """Angles of n positions, to be handed to `turn_`."""

    def angles(self) -> Tensor:
        """float32 [capacity, head_dim]: the cosines of each position's pairs, then the sines."""

    def turn_(self, heads: Tensor, angles: Tensor) -> None:
        """Turns heads [n, h, head_dim] in place."""


def rotation(module: Any, like: Tensor, capacity: int) -> Rotation:
    """The rotation of a transformers rotary module, for heads of the dtype and device of `like`."""
    positions = torch.arange(capacity, device=like.device).unsqueeze(0)
    cos, sin = (table[0] for table in module(like, positions))
    return (_Pairs if like.dtype is torch.float32 else _Halves)(cos, sin)


class _Pairs:
    """Neighbours are the two parts of a complex number. float32."""

    stride, partner = 2, 1

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        half = cos.shape[-1] // 2
        self.order = torch.arange(2 * half, device=cos.device).view(2, half).t().flatten()
        self.table = torch.complex(cos[:, None, :half].contiguous(), sin[:, None, :half].contiguous())

    def at(self, positions: slice | Tensor) -> Tensor:
        return self.table[positions]

    def angles(self) -> Tensor:
        return torch.cat([self.table.real[:, 0], self.table.imag[:, 0]], dim=-1).contiguous()

    def turn_(self, heads: Tensor, angles: Tensor) -> None:
        pairs = heads.view(*heads.shape[:-1], -1, 2)
        torch.view_as_complex(pairs).mul_(angles)


class _Halves:
    """A number's partner is half a head away. With the sign in the table, a roll brings it."""

    stride = 1

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.partner = half = cos.shape[-1] // 2
        self.order = torch.arange(2 * half, device=cos.device)
        signed = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        self.table = torch.stack([cos, signed]).unsqueeze(2)

    def at(self, positions: slice | Tensor) -> Tensor:
        return self.table[:, positions]

    def angles(self) -> Tensor:
        cos, sin = self.table[:, :, 0].float()
        return torch.cat([cos[:, : self.partner], sin[:, self.partner :]], dim=-1).contiguous()

    def turn_(self, heads: Tensor, angles: Tensor) -> None:
        cos, sin = angles
        torch.addcmul(heads * cos, torch.roll(heads, self.partner, dims=-1), sin, out=heads)
