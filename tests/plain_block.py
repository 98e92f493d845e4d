"""DFlash's block computed as plainly as it can be written: no cache, no masks, one head and row at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from draftboard.measure.target import TargetModel
from draftboard_drafters.checkpoints import Checkpoint

Sees = Callable[[int, int, int, int], bool]
"""(layer, position of the row, position looked at, anchor's position) -> whether the row sees it."""


def plain_block(checkpoint: Checkpoint, target: TargetModel, tokens: list[int], sees: Sees) -> Tensor:
    """States [slots, H] past the final norm, for the block that begins at the last of `tokens`."""
    block, parameters = checkpoint.parallel, {k: t.float() for k, t in checkpoint.tensors.items()}
    assert block is not None
    target.begin(checkpoint.taps)
    _, features = target.prefill(torch.tensor(tokens[:-1]))
    eps = checkpoint.geometry.eps
    context = norm(features.flatten(1) @ parameters["fc.weight"].T, parameters["hidden_norm.weight"], eps)
    x = target.embed(torch.tensor([tokens[-1]] + [block.mask_id] * (block.block_size - 1)))
    for layer in range(checkpoint.layers):
        own = {k.removeprefix(f"layers.{layer}."): t for k, t in parameters.items()}
        h = norm(x, own["input_layernorm.weight"], eps)
        x = x + attention(
            checkpoint, own, context, h, lambda row, at, anchor, i=layer: sees(i, row, at, anchor)
        )
        h = norm(x, own["post_attention_layernorm.weight"], eps)
        gate = h @ own["mlp.gate_proj.weight"].T
        x = x + (gate * gate.sigmoid() * (h @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    return norm(x, parameters["norm.weight"], eps)


def attention(
    checkpoint: Checkpoint,
    own: dict[str, Tensor],
    context: Tensor,
    h: Tensor,
    sees: Callable[[int, int, int], bool],
) -> Tensor:
    shape, anchor = checkpoint.geometry, len(context)
    everything = torch.cat([context, h])
    keys = (everything @ own["self_attn.k_proj.weight"].T).view(-1, shape.kv_heads, shape.head_dim)
    values = (everything @ own["self_attn.v_proj.weight"].T).view(-1, shape.kv_heads, shape.head_dim)
    queries = (h @ own["self_attn.q_proj.weight"].T).view(-1, shape.heads, shape.head_dim)
    theta, out = checkpoint.rope.parameters["rope_theta"], torch.zeros(len(h), shape.heads, shape.head_dim)
    for row in range(len(h)):
        seen = [at for at in range(len(everything)) if sees(anchor + row, at, anchor)]
        for head in range(shape.heads):
            shared = head // (shape.heads // shape.kv_heads)
            q = turn(norm(queries[row, head], own["self_attn.q_norm.weight"], shape.eps), anchor + row, theta)
            ks = [
                turn(norm(keys[at, shared], own["self_attn.k_norm.weight"], shape.eps), at, theta)
                for at in seen
            ]
            weights = (torch.stack(ks) @ q / shape.head_dim**0.5).softmax(0)
            out[row, head] = weights @ values[seen, shared]
    return out.flatten(1) @ own["self_attn.o_proj.weight"].T


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """Dimension i and its partner half a head further on, as a complex number turned by the position."""
    half = len(x) // 2
    angles = position * theta ** (-torch.arange(half) / half)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half), angles)
    return torch.cat([turned.real, turned.imag])
