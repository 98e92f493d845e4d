"""Drafters with weights set by hand, which guess by a table: after token t comes table[t].

The target of `cycle_target` follows such a table, `CYCLE`: its embeddings are orthogonal, and its head holds
them in the order of their successors. Its blocks add a little of the context, so the states that drafters tap
differ from place to place; the choice never hangs on it. So a drafter with the same table is a copy of the
target as far as greedy text goes, whatever was committed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, NO_WEIGHTS, Draft, Drafter
from draftboard.measure.sampling import Randomness, Sampler, Verdict
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard_drafters import dflash, draft_model, dspark, eagle3, mtp
from draftboard_drafters._layers import Geometry, Rope, Sight
from draftboard_drafters.checkpoints import (
    Checkpoint,
    Expected,
    Parallel,
    Plan,
    Serial,
    Spec,
    parallel,
    serial,
)
from draftboard_drafters.checkpoints.loader import assemble
from draftboard_drafters.checkpoints.random import randomised
from draftboard_drafters.checkpoints.record import TARGETS
from tiny import SIZES, tiny_model

V = H = SIZES["hidden_size"]
MASK = V - 1
"""The mask of a block's open slots; it follows itself, and no text holds it."""
SHARP, THETA = 12.0, 10000.0


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _cycle() -> Tensor:
    order = torch.randperm(MASK, generator=_seeded(0))
    table = torch.full((V,), MASK)
    table[order] = order.roll(-1)
    return table


CYCLE = _cycle()
"""int64 [V]: every token but the mask leads through all the others back to itself."""
BASIS = torch.linalg.qr(torch.randn(V, H, generator=_seeded(1)))[0]
"""Orthonormal [V, H]: the direction of each token's embedding."""


def spoilt(wrong: int) -> Tensor:
    """The table with the successors of this many tokens handed round among them."""
    table, chosen = CYCLE.clone(), torch.randperm(MASK, generator=_seeded(2))[:wrong]
    table[chosen] = CYCLE[chosen.roll(1)]
    return table


def following(token: int, count: int) -> tuple[int, ...]:
    """The `count` tokens after `token`, by the cycle."""
    text = [token]
    for _ in range(count):
        text.append(int(CYCLE[text[-1]]))
    return tuple(text[1:])


def head_of(table: Tensor) -> Tensor:
    """A head [V, H] whose largest logit for the embedding of t is that of table[t]."""
    head = torch.empty_like(BASIS)
    head[table] = BASIS
    return head


def cycle_target(family: str, table: Tensor = CYCLE, max_context: int = 256) -> TargetModel:
    """A target of a transformers model type that says table[t] after t."""
    model = tiny_model(family, vocab_size=V, max_position_embeddings=max_context)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(BASIS * H**0.5)
        model.lm_head.weight.copy_(head_of(table))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.05)
    return TargetModel(model, id=f"cycle-{family}", max_context=max_context, stop_ids=frozenset())


def draft_model_by(table: Tensor, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """A draft model that is the target but for its head."""
    model = cycle_target(target.config.model_type, table, target.max_context)
    return draft_model.DraftModel(target, sampler, model, k, NO_WEIGHTS)


def eagle3_by(table: Tensor, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """Attention copies the embedding of the row's own token into the stream; the feature is kept small."""
    spec = _spec("eagle3", target, k, _one_size(1), serial=Serial(norm_before_residual=True))
    tensors = {
        "layers.0.hidden_norm.weight": torch.full((H,), 0.1),
        "layers.0.self_attn.v_proj.weight": torch.eye(H, 2 * H),
        "layers.0.self_attn.o_proj.weight": torch.eye(H),
        **_looking_back([0], 2 * H),
        "lm_head.weight": head_of(table),
    }
    checkpoint = _by_hand(spec, serial.eagle3(spec, H, embedding=TARGETS, first="layers.0."), tensors)
    return eagle3.drafter(checkpoint, target, sampler, None)


def mtp_by(table: Tensor, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """The joint of embedding and state passes the embedding on; all else is small."""
    spec = _spec("mtp", target, k, _one_size(1, attention_bias=False), serial=Serial(recycle_normed=True))
    state = torch.randn(H, H, generator=_seeded(3)) * 0.05
    tensors = {"fc.weight": torch.cat([torch.eye(H), state], dim=1), "lm_head.weight": head_of(table)}
    checkpoint = _by_hand(spec, serial.mtp(spec, serial.PLAIN_KEYS), tensors)
    return mtp.drafter(checkpoint, target, sampler, None)


def dflash_by(table: Tensor, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """Head j of the one layer looks j slots back. In slot j that is the anchor, and its embedding comes out
    as that of the token j-1 places on; masks and context have the value 0. The text before the anchor must
    have K tokens."""
    block = Parallel(block_size=k + 1, mask_id=MASK, anchor_predicts=False, sights=(Sight(),))
    spec = _spec("dflash", target, k, _one_size(k, qk_norm=True), parallel=block)
    mask, step = BASIS[MASK], BASIS[CYCLE].T @ BASIS
    onwards = [torch.linalg.matrix_power(step, places) for places in range(k)]
    tensors = {
        "fc.weight": torch.outer(mask, torch.randn(2 * H, generator=_seeded(4))),
        "hidden_norm.weight": torch.ones(H),
        "layers.0.input_layernorm.weight": torch.ones(H),
        "layers.0.self_attn.v_proj.weight": torch.eye(H) - torch.outer(mask, mask),
        "layers.0.self_attn.o_proj.weight": 4 * torch.cat(onwards, dim=1),
        "layers.0.self_attn.q_norm.weight": torch.full((H,), SHARP / 2**0.5),
        "layers.0.self_attn.k_norm.weight": torch.full((H,), SHARP / 2**0.5),
        **_looking_back(range(1, k + 1), H),
        "lm_head.weight": head_of(table),
    }
    checkpoint = _by_hand(spec, parallel.tensors(spec, embedding=TARGETS, head=TARGETS), tensors)
    return dflash.DFlash(checkpoint, target, sampler, None)


def dspark_by(table: Tensor, target: TargetModel, sampler: Sampler, k: int) -> Drafter:
    """The Markov head is the table and outweighs the block, which is random."""
    block = Parallel(
        block_size=k, mask_id=MASK, anchor_predicts=True, sights=(Sight(),), markov="vanilla", markov_rank=V
    )
    spec = _spec("dspark", target, k, _one_size(2, qk_norm=True), parallel=block)
    tensors = {
        "markov_head.markov_w1.weight": torch.eye(V),
        "markov_head.markov_w2.weight": 40 * torch.eye(V)[table].T,
    }
    checkpoint = _by_hand(spec, parallel.tensors(spec, embedding=TARGETS, head=TARGETS), tensors)
    return dspark.DSpark(checkpoint, target, sampler, None)


TABLES: dict[str, Callable[[Tensor, TargetModel, Sampler, int], Drafter]] = {
    "draft_model": draft_model_by,
    "eagle3": eagle3_by,
    "mtp": mtp_by,
    "dflash": dflash_by,
    "dspark": dspark_by,
}


def _one_size(heads: int, *, qk_norm: bool = False, attention_bias: bool = True) -> Geometry:
    """Heads as wide as the states, which share one key and one value."""
    return Geometry(
        hidden_size=H,
        intermediate_size=H,
        heads=heads,
        kv_heads=1,
        head_dim=H,
        eps=1e-6,
        qk_norm=qk_norm,
        attention_bias=attention_bias,
    )


def _spec(method: str, target: TargetModel, k: int, geometry: Geometry, **conventions: Any) -> Spec:
    return Spec(
        method=method,
        layout="none",
        taps=(FINAL_NORM,) if method == "mtp" else (1, target.num_layers - 1),
        k=k,
        geometry=geometry,
        rope=Rope({"rope_type": "default", "rope_theta": THETA}, target.max_context),
        layers=1,
        vocab_size=V,
        draft_vocab_size=V,
        **conventions,
    )


def _by_hand(spec: Spec, expected: Iterable[Expected], tensors: Mapping[str, Tensor]) -> Checkpoint:
    """A checkpoint of these tensors, and of small random ones where there are none."""
    plan = Plan(spec, tuple(expected))
    small = randomised(plan, spread=0.05).tensors
    return assemble(plan, {**small, **tensors}, "weights set by hand", "random")


def _looking_back(offsets: Sequence[int], width: int) -> dict[str, Tensor]:
    """Queries and keys by which head i looks `offsets[i]` positions back, whatever stands there.

    Both are constant, so only the rotary angles tell positions apart: between positions m and n the score is
    proportional to the sum of cos((m - n - offset) * theta_j) over the planes j, which is largest where m - n
    is the offset.
    """
    planes = THETA ** (-torch.arange(H // 2) / (H // 2))
    turns = torch.outer(torch.tensor(offsets), planes)
    ones = torch.ones(H // 2)
    attention = {
        "q_proj.weight": torch.zeros(len(offsets) * H, width),
        "q_proj.bias": SHARP * torch.cat([turns.cos(), -turns.sin()], dim=1).flatten(),
        "k_proj.weight": torch.zeros(H, width),
        "k_proj.bias": SHARP * torch.cat([ones, 0 * ones]),
        "v_proj.bias": torch.zeros(H),
    }
    return {f"layers.0.self_attn.{name}": tensor for name, tensor in attention.items()}


class Rejecting(Sampler):
    """Greedy, but in round i keeps at most `plan[i]` guesses and then says something else than the target."""

    def __init__(self, plan: Iterable[int]) -> None:
        super().__init__(Sampling(), Randomness(0, torch.device("cpu")))
        self.plan = iter(plan)

    def verify(self, logits: Tensor, draft: Draft) -> Verdict:
        verdict, most = super().verify(logits, draft), next(self.plan, len(draft.tokens))
        if verdict.hits <= most:
            return verdict
        other = CYCLE[verdict.tokens[most : most + 1]]
        return Verdict.of(torch.cat([draft.tokens[:most], other]), most)
