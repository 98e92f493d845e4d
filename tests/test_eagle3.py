"""EAGLE-3 against a plain computation without a cache, in the variants that no golden case has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import eagle3
from draftboard_drafters._layers import Geometry, Rope
from draftboard_drafters.checkpoints import Checkpoint, Plan, Serial, Spec, serial
from draftboard_drafters.checkpoints.loader import assemble
from draftboard_drafters.checkpoints.random import randomised
from tiny import tiny_target

SHAPE = Geometry(
    hidden_size=24, intermediate_size=40, heads=4, kv_heads=2, head_dim=8, eps=1e-6, qk_norm=False
)
THETA, V, VD, DRAFTS = 500.0, 96, 40, 4
IDS = torch.arange(VD) * 2 + 1
VARIANTS: dict[str, tuple[int, Serial]] = {
    "plain": (1, Serial()),
    "one norm before fusing": (1, Serial(norm_before_fuse=True)),
    "every tap normed": (1, Serial(tap_norms=True)),
    "no norm before the head": (1, Serial(norm_before_head=False)),
    "normed residual, normed state recycled": (1, Serial(norm_before_residual=True, recycle_normed=True)),
    "two layers": (2, Serial()),
}


def checkpoint(variant: str) -> Checkpoint:
    """Narrower than the target, with its own embedding, head and reduced vocabulary."""
    layers, switches = VARIANTS[variant]
    spec = Spec(
        method="eagle3",
        layout="none",
        taps=(0, 2),
        k=DRAFTS,
        geometry=SHAPE,
        rope=Rope({"rope_type": "default", "rope_theta": THETA}, 256),
        layers=layers,
        vocab_size=V,
        draft_vocab_size=VD,
        serial=switches,
    )
    plan = Plan(spec, serial.eagle3(spec, 32, embedding=None, first="layers.0."))
    tensors = {**randomised(plan).tensors, "d2t": IDS - torch.arange(VD)}
    return assemble(plan, tensors, "random weights", "random")


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: Tensor) -> Tensor:
    """x [n, heads, 8] at positions 0..n-1: halves i and i+4 as complex numbers, times e^(i * angle)."""
    angles = torch.arange(len(x))[:, None, None] * THETA ** (-torch.arange(4) / 4)
    both = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([both.real, both.imag], dim=-1)


def attended(t: dict[str, Tensor], layer: str, x: Tensor) -> Tensor:
    q, k, v = (
        (x @ t[f"{layer}self_attn.{name}_proj.weight"].T).view(len(x), -1, 8) for name in ("q", "k", "v")
    )
    q, k, v = turned(q), turned(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    seen = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
    return seen @ t[f"{layer}self_attn.o_proj.weight"].T


def swiglu(t: dict[str, Tensor], layer: str, y: Tensor) -> Tensor:
    x = norm(y, t[f"{layer}post_attention_layernorm.weight"])
    gate, up, down = (t[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return y + (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def plain_states(c: Checkpoint, tokens: Tensor, features: Tensor) -> Tensor:
    """y of every row, all computed afresh."""
    t, switches = dict(c.tensors), c.serial
    assert switches is not None
    normed = norm(features, t["layers.0.hidden_norm.weight"])
    embedded = norm(t["embed_tokens.weight"][tokens], t["layers.0.input_layernorm.weight"])
    y = normed if switches.norm_before_residual else features
    y = swiglu(t, "layers.0.", y + attended(t, "layers.0.", torch.cat([embedded, normed], -1)))
    for i in range(1, c.layers):
        x = norm(y, t[f"layers.{i}.input_layernorm.weight"])
        y = swiglu(t, f"layers.{i}.", y + attended(t, f"layers.{i}.", x))
    return y


def plain_fused(c: Checkpoint, taps: Tensor) -> Tensor:
    t, switches = c.tensors, c.serial
    assert switches is not None
    if switches.tap_norms:
        taps = torch.stack([norm(taps[:, i], t[f"fc_norm.{i}.weight"]) for i in range(2)], 1)
    joint = taps.flatten(1)
    return (norm(joint, t["input_norm.weight"]) if switches.norm_before_fuse else joint) @ t["fc.weight"].T


def plain_laws(c: Checkpoint, tokens: Tensor, taps: Tensor, drafts: list[int]) -> Tensor:
    """The laws [K, V] of drafts that were drawn, at temperature 1."""
    switches, features, laws = c.serial, plain_fused(c, taps), []
    assert switches is not None
    for draft in drafts:
        y = plain_states(c, tokens, features)[-1:]
        normed = norm(y, c.tensors["norm.weight"])
        logits = (normed if switches.norm_before_head else y) @ c.tensors["lm_head.weight"].T
        laws.append(torch.zeros(1, V).index_copy(1, IDS, logits.softmax(-1)))
        tokens = torch.cat([tokens, torch.tensor([draft])])
        features = torch.cat([features, normed if switches.recycle_normed else y])
    return torch.cat(laws)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_laws_are_those_of_a_plain_computation(variant: str) -> None:
    """Over three rounds with drafts accepted and rejected; the ids that the drafter does not know have 0."""
    target, c = tiny_target(), checkpoint(variant)
    sampler = Sampler(Sampling(temperature=1.0), Randomness(3, torch.device("cpu")))
    drafter: Any = eagle3.drafter(c, target, sampler, None)
    text = torch.tensor([5, 3, 8, 1, 9, 20])
    target.begin(drafter.taps)
    taps = target.prefill(text[:-1])[1]
    drafter.prefill(text, taps)
    for accepted in (2, 0, 4):
        draft = drafter.propose(DRAFTS)
        expected = plain_laws(c, text[1:], taps, draft.tokens.tolist())
        torch.testing.assert_close(draft.probs, expected, atol=2e-4, rtol=0)
        assert set(draft.tokens.tolist()) <= set(IDS.tolist())
        new = torch.cat([draft.tokens[:accepted], torch.tensor([7])])
        more = target.extend(torch.cat([text[-1:], new[:-1]]))[1]
        drafter.commit(new, more)
        text, taps = torch.cat([text, new]), torch.cat([taps, more])


def test_a_checkpoint_of_a_wider_target_is_refused() -> None:
    narrow = dataclasses.replace(checkpoint("plain"), taps=(0, 1, 2))
    with pytest.raises(UserError, match="fuses states 64 wide, and 3 taps of 'tiny-llama-0' are 96"):
        eagle3.drafter(narrow, tiny_target(), Sampler(Sampling(), Randomness(0, torch.device("cpu"))), None)


def test_no_drafts_are_refused() -> None:
    with pytest.raises(UserError, match="num_speculative_tokens must be at least 1, found 0"):
        eagle3.example(
            tiny_target(),
            Sampler(Sampling(), Randomness(0, torch.device("cpu"))),
            num_speculative_tokens=0,
        )
