"""A decoder layer that autograd can follow. Tests hold it against the layer that drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard_drafters._layers import Angles, Geometry, rotate

Parameters = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis, in the weight's precision."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)


def swiglu(x: Tensor, parameters: Parameters, at: str) -> Tensor:
    """down(silu(gate(x)) * up(x)) with the parameters that begin with `at`."""
    gate, up = (
        F.linear(x, parameters[f"{at}gate_proj.weight"]),
        F.linear(x, parameters[f"{at}up_proj.weight"]),
    )
    return F.linear(F.silu(gate) * up, parameters[f"{at}down_proj.weight"])


def project(
    x: Tensor, parameters: Parameters, at: str, shape: Geometry, angles: Angles
) -> tuple[Tensor, Tensor, Tensor]:
    """Turned queries [B, heads, n, hd], turned keys and plain values [B, kv_heads, n, hd] of x [B, n, in]."""
    queries = heads_of(x, parameters[f"{at}q_proj.weight"], shape.head_dim)
    if shape.qk_norm:
        queries = norm(queries, parameters[f"{at}q_norm.weight"], shape.eps)
    keys, values = keys_values(x, parameters, at, shape, angles)
    return rotate(queries, angles).transpose(1, 2), keys, values


def keys_values(
    x: Tensor, parameters: Parameters, at: str, shape: Geometry, angles: Angles
) -> tuple[Tensor, Tensor]:
    """Turned keys and plain values [B, kv_heads, n, hd] of x [B, n, in]."""
    keys = heads_of(x, parameters[f"{at}k_proj.weight"], shape.head_dim)
    if shape.qk_norm:
        keys = norm(keys, parameters[f"{at}k_norm.weight"], shape.eps)
    values = heads_of(x, parameters[f"{at}v_proj.weight"], shape.head_dim)
    return rotate(keys, angles).transpose(1, 2), values.transpose(1, 2)


def heads_of(x: Tensor, weight: Tensor, head_dim: int) -> Tensor:
    """x times weight, split into heads: [B, n, heads, hd]."""
    return torch.unflatten(F.linear(x, weight), -1, (-1, head_dim))


def attend_chains(queries: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Attention of step s of n chains that grow side by side; row t sees the first keys up to its own
    place and, of every later step, the key of its own chain alone. Returns [B, n, heads * hd].

    `queries` [B, heads, n, hd]; `keys` and `values` hold the first step's [B, kv_heads, m, hd], m >= n, whose
    last n rows are the chains', and those of the s later ones, [B, kv_heads, n, hd].
    """
    if len(keys) == 1:
        seen = F.scaled_dot_product_attention(queries, keys[0], values[0], is_causal=True, enable_gqa=True)
        return seen.transpose(1, 2).flatten(2)
    batch, heads, rows, head_dim = queries.shape
    grouped = torch.unflatten(queries, 1, (keys[0].shape[1], -1)) * head_dim**-0.5
    first = grouped @ keys[0].unsqueeze(2).transpose(-1, -2)
    earlier = keys[0].shape[2] - rows
    future = torch.ones(first.shape[-2:], dtype=torch.bool, device=queries.device).triu(1 + earlier)
    own = [(grouped * later.unsqueeze(2)).sum(-1, keepdim=True) for later in keys[1:]]
    weights = torch.cat([first.masked_fill(future, -torch.inf), *own], dim=-1).softmax(-1)
    seen = weights[..., : first.shape[-1]] @ values[0].unsqueeze(2)
    for step, later in enumerate(values[1:]):
        seen = seen + weights[..., first.shape[-1] + step, None] * later.unsqueeze(2)
    return seen.flatten(1, 2).transpose(1, 2).reshape(batch, rows, heads * head_dim)


def chain_step(
    x: Tensor,
    residual: Tensor,
    parameters: Parameters,
    at: str,
    shape: Geometry,
    angles: Angles,
    keys: list[Tensor],
    values: list[Tensor],
) -> Tensor:
    """One step of a decoder layer for chains: residual [B, n, H] + attention(x [B, n, in]), and on it the
    MLP. Appends the step's keys and values to the lists; see `attend_chains`."""
    queries, key, value = project(x, parameters, f"{at}self_attn.", shape, angles)
    keys.append(key)
    values.append(value)
    seen = attend_chains(queries, keys, values)
    y = residual + F.linear(seen, parameters[f"{at}self_attn.o_proj.weight"])
    normed = norm(y, parameters[f"{at}post_attention_layernorm.weight"], shape.eps)
    return y + swiglu(normed, parameters, f"{at}mlp.")


def attend_blocks(
    queries: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], anchors: Tensor
) -> Tensor:
    """Attention of A blocks of S slots: each sees the context before its anchor and the whole of itself.

    `queries` [B, heads, A * S, hd], keys and values of the context [B, kv_heads, n, hd] and of the blocks
    [B, kv_heads, A * S, hd], `anchors` int64 [B, A]. Returns [B, A * S, heads * hd].
    """
    batch, heads, rows, head_dim = queries.shape
    blocks, kv_heads, length = anchors.shape[1], context[0].shape[1], context[0].shape[2]
    grouped = torch.unflatten(queries, 1, (kv_heads, -1)) * head_dim**-0.5
    before = torch.arange(length, device=anchors.device) < anchors[..., None]
    hidden = ~before.repeat_interleave(rows // blocks, dim=1)[:, None, None]
    far = grouped @ context[0].unsqueeze(2).transpose(-1, -2)
    keys, values = (torch.unflatten(tensor, 2, (blocks, -1)).unsqueeze(2) for tensor in own)
    near = torch.unflatten(grouped, 3, (blocks, -1)) @ keys.transpose(-1, -2)
    joint = torch.cat([far.masked_fill(hidden, -torch.inf), near.flatten(3, 4)], dim=-1).softmax(-1)
    weights, rest = joint[..., :length], torch.unflatten(joint[..., length:], 3, (blocks, -1))
    seen: Tensor = weights @ context[1].unsqueeze(2) + (rest @ values).flatten(3, 4)
    return seen.flatten(1, 2).transpose(1, 2).reshape(batch, rows, heads * head_dim)
