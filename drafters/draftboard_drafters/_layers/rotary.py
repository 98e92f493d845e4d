"""Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864) and its scaled variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftboard.errors import UserError

Angles = tuple[Tensor, Tensor]
"""cos and sin, each [n, 1, rotary width], for n positions."""

FIXED = frozenset({"default", "linear", "llama3", "yarn"})
"""Variants whose angles depend on the position alone. Where they depend on the length seen so far, keys that
were cached earlier would be turned differently from new ones."""

_OF_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""Parameters of the three-axis variant. In text the three positions are equal, and it is the plain one."""


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding as a checkpoint states it.

    `parameters` is transformers' `rope_parameters`: `rope_type`, `rope_theta` and what the type needs.
    `max_position_embeddings` enters some variants' frequencies; it never sizes a table.
    """

    parameters: Mapping[str, Any]
    max_position_embeddings: int


class Rotary:
    """The angles of positions 0 to length-1, computed once.

    `length` is what the drafter's cache holds: published drafters state the length they were trained with,
    and are used far beyond it. `table` has the angles for compiled calls, None where only a part of a head
    turns.
    """

    def __init__(
        self, rope: Rope, head_dim: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Angles in `dtype`, computed in float32. Raises UserError for a variant outside `FIXED`."""
        # Imported here, as below: it takes seconds, and listing the drafters needs none of it.
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        width = int(head_dim * rope.parameters.get("partial_rotary_factor", 1.0))
        turn = LlamaRotaryEmbedding(_config(rope, width)).to(device)
        positions = torch.arange(length, device=device)[None]
        cos, sin = (table[0] for table in turn(torch.empty(0, dtype=dtype, device=device), positions))
        # The rotation swaps the halves and negates one; with the sign in the table, a roll does the rest.
        signed = torch.cat([-sin[:, : width // 2], sin[:, width // 2 :]], dim=-1)
        self.cos, self.sin = cos.unsqueeze(1).contiguous(), signed.unsqueeze(1).contiguous()
        self.table = self._table() if width == head_dim else None

    def _table(self) -> Tensor:
        """float32 [length, head_dim]: each position's cosines, then its sines."""
        half = self.cos.shape[-1] // 2
        return torch.cat([self.cos[:, 0, :half], self.sin[:, 0, half:]], dim=-1).float().contiguous()

    def at(self, place: slice | Tensor) -> Angles:
        """The angles of the positions in `place`, a slice or int64 [n]."""
        return self.cos[place], self.sin[place]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """x [n, heads, head_dim] turned by its positions' angles; what lies beyond the rotary width stays."""
    cos, sin = angles
    width = cos.shape[-1]
    turning = x[..., :width]
    turned = turning * cos + torch.roll(turning, width // 2, dims=-1) * sin
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)


def _config(rope: Rope, width: int) -> Any:
    from transformers import LlamaConfig

    kind = rope.parameters.get("rope_type", "default")
    if kind not in FIXED:
        raise UserError(
            f"rotary variant {kind!r} cannot be run: its angles change with the length of the text,"
            f" which cached keys cannot follow (can run: {', '.join(sorted(FIXED))})"
        )
    skipped = _OF_IMAGES | {"partial_rotary_factor"}
    return LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        max_position_embeddings=rope.max_position_embeddings,
        rope_parameters={key: value for key, value in rope.parameters.items() if key not in skipped},
    )
