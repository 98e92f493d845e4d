"""EAGLE-3: one decoder layer extrapolates a fusion of the target's low, middle and high states.

Algorithm (Y. Li, F. Wei, C. Zhang, H. Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test", arXiv 2503.01840; reference implementation github.com/SafeAILab/EAGLE), as a
chain. With h_1..h_T the tapped states at position t and E the embedding:

    g_t = fc(cat(h_1, .., h_T))                                   where the target's states are known
    x_t = cat(norm_e(E[token t+1]), norm_g(g_t))                  width 2H, at rotary position t
    y_t = g_t + attention(x_t) ;  y_t = y_t + SwiGLU(norm(y_t))
    logits of token t+2 = head(norm(y_t))                         over the drafter's own, smaller vocabulary
    g_{t+1} = y_t                                                 from the second draft on

Variants, by checkpoint: every tap normed on its own (`fc_norm`) or all together (`norm_before_fc`) before fc;
the residual stream starts at norm_g(g_t) (`norm_before_residual`); norm(y_t) is recycled; more layers, plain
ones, after the first. The law handed over is the softmax over the smaller vocabulary, at the target's ids and
0 elsewhere, so a token that the drafter does not know comes from the residual alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftboard.drafter import Card, Claim, Drafter, DraftSampler, Target, UserError
from draftboard_drafters import checkpoints
from draftboard_drafters._layers import (
    Attention,
    DecoderLayer,
    Geometry,
    KVCache,
    Rope,
    Rows,
    SwiGLU,
    joined,
    part,
)
from draftboard_drafters._serial import SerialDrafter
from draftboard_drafters.checkpoints import Checkpoint, Plan, Serial, Served, Spec, serial
from draftboard_drafters.checkpoints.loader import assemble
from draftboard_drafters.checkpoints.random import randomised
from draftboard_drafters.checkpoints.record import TARGETS
from draftboard_drafters.checkpoints.shipped import located

_NVIDIA = "articles about NVIDIA's selection table of 2 Sep 2026"

CARD = Card(
    label="EAGLE-3",
    order=30,
    mechanism="One small layer extrapolates a fusion of the target's low, middle and high states.",
    needs="States of three to five layers and the embedding.",
    drafting="serial",
    training_cost=Claim(
        "1.3 M prompts answered by the target, 10 epochs (DeepSpec's retraining)",
        "DSpark paper, arXiv 2607.05147, and its code",
    ),
    claims=(
        Claim("a reference now, acceptance length overtaken", _NVIDIA, second_hand=True),
        Claim(
            "up to 6.5x, about 1.4x over EAGLE-2, with trees of drafts at temperature 0",
            "EAGLE-3 paper, arXiv 2503.01840, abstract",
        ),
        Claim(
            "acceptance length 5.30 on GSM8K and 2.66 on MT-Bench for Qwen3-8B, chains of 7, temperature 1",
            "DSpark paper, arXiv 2607.05147, table 1",
        ),
    ),
    when_to_use="When a checkpoint for the target exists; the drafter most engines serve.",
    serving_name="eagle3",
)


class Eagle3Step:
    """The network; see the module's docstring."""

    def __init__(self, checkpoint: Checkpoint, served: Served) -> None:
        assert checkpoint.serial is not None
        shape, tensors, switches = checkpoint.geometry, served.tensors, checkpoint.serial
        self.norm_before_residual = switches.norm_before_residual
        tap_norms = part(tensors, "fc_norm.")
        self.tap_norms = [shape.norm(tap_norms[f"{i}.weight"]) for i in range(len(tap_norms))]
        self.input_norm = shape.norm(tensors["input_norm.weight"]) if switches.norm_before_fuse else None
        self.fc = joined(tensors, "fc")
        first = part(tensors, "layers.0.")
        self.embedding_norm = shape.norm(first["input_layernorm.weight"])
        self.feature_norm = shape.norm(first["hidden_norm.weight"])
        self.attention = Attention(part(first, "self_attn."), shape)
        self.post_norm = shape.norm(first["post_attention_layernorm.weight"])
        self.mlp = SwiGLU(part(first, "mlp."))
        self.rest = [DecoderLayer(part(tensors, f"layers.{i}."), shape) for i in range(1, checkpoint.layers)]

    def fuse(self, taps: Tensor) -> Tensor:
        """g [n, H] from the tapped states [n, T, Ht]."""
        if self.tap_norms:
            taps = torch.stack([norm(taps[:, i]) for i, norm in enumerate(self.tap_norms)], dim=1)
        joint = taps.flatten(1)
        return self.fc(joint if self.input_norm is None else self.input_norm(joint))

    def __call__(self, embedded: Tensor, feature: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """y [n, H] from embeddings and features [n, H] of the rows' positions."""
        normed = self.feature_norm(feature)
        x = torch.cat([self.embedding_norm(embedded), normed], dim=-1)
        y = normed if self.norm_before_residual else feature
        y = y + self.attention(x, rows, cache, 0)
        y = y + self.mlp(self.post_norm(y))
        for index, layer in enumerate(self.rest, start=1):
            y = layer(y, rows, cache, index)
        return y


def drafter(
    checkpoint: Checkpoint, target: Target, sampler: DraftSampler, num_speculative_tokens: int | None
) -> SerialDrafter:
    """A drafter from a checkpoint that fits the target. Raises UserError where it does not."""
    served = checkpoints.serve(checkpoint, target)
    read, taps = served.tensors["fc.weight"].shape[1], checkpoint.taps_of(target.num_layers)
    if read != len(taps) * target.hidden_size:
        raise UserError(
            f"{checkpoint.path} fuses states {read} wide, and {len(taps)} taps of {target.id!r} are"
            f" {len(taps) * target.hidden_size}; choose the checkpoint of this target"
        )
    step = Eagle3Step(checkpoint, served)
    return SerialDrafter(checkpoint, served, target, sampler, step, num_speculative_tokens)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    checkpoint: str,
    revision: str | None = None,
    num_speculative_tokens: int | None = None,
) -> Drafter:
    """An EAGLE-3 drafter in SafeAILab, SpecForge, speculators or DeepSpec layout.

    `checkpoint` is a folder, a hub id, or `shipped` for the weights in this repository.

    K defaults to the drafts unrolled in training and may be any. Raises UserError for a checkpoint that
    cannot be read, is another method's, or does not fit the target.
    """
    loaded = checkpoints.load_as("eagle3", located(checkpoint, "eagle3", target), revision)
    return drafter(loaded, target, sampler, num_speculative_tokens)


def example(target: Target, sampler: DraftSampler, *, num_speculative_tokens: int = 3) -> Drafter:
    """A tiny EAGLE-3 with random weights that fits the target and knows every second of its tokens."""
    plan = _example_plan(target, target.vocab_size)
    reduced = _example_plan(target, target.vocab_size // 2)
    tensors = dict(randomised(plan).tensors)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][::2][: reduced.spec.draft_vocab_size]
    tensors["d2t"] = torch.arange(reduced.spec.draft_vocab_size)
    checkpoint = assemble(reduced, tensors, "random weights", "random")
    return drafter(checkpoint, target, sampler, num_speculative_tokens)


def _example_plan(target: Target, draft_vocab_size: int) -> Plan:
    spec = Spec(
        method="eagle3",
        layout="none",
        taps=(1, target.num_layers - 1),
        k=3,
        geometry=Geometry(
            hidden_size=target.hidden_size,
            intermediate_size=2 * target.hidden_size,
            heads=4,
            kv_heads=2,
            head_dim=16,
            eps=1e-6,
            qk_norm=False,
        ),
        rope=Rope({"rope_type": "default", "rope_theta": 10000.0}, target.max_context),
        layers=1,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        serial=Serial(tap_norms=True),
    )
    return Plan(spec, serial.eagle3(spec, target.hidden_size, embedding=TARGETS, first="layers.0."))
