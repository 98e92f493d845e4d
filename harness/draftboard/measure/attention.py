"""Grouped-query attention of a few rows over a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(head_dim) + mask) v.

    query [n, heads, head_dim], keys and values [kv_heads, m, head_dim], mask [heads/kv_heads * n, m],
    bool or as `additive` makes it, or None where every row sees everything. Returns [n, heads * head_dim].
    Query heads that share a KV head become rows of one product: no key is copied.
    """
    rows, heads, head_dim = query.shape
    kv_heads, group = len(keys), heads // len(keys)
    if rows == 1:
        grouped = query.reshape(1, kv_heads, group, head_dim)
        seen = F.scaled_dot_product_attention(grouped, keys[None], values[None], attn_mask=mask)
        return seen.reshape(1, -1)
    grouped = (
        query.reshape(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head_dim)
    )
    seen = F.scaled_dot_product_attention(grouped, keys[None], values[None], attn_mask=mask)
    return seen.view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, -1)


def additive(seen: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """bool [n, m], true where a row sees a column, as what is added to scores: [group * n, m]. Made once a
    forward: the attention would make it again in every layer."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    return mask.repeat(group, 1)
