"""MTP: the module that a target was trained with to predict one token more, used again and again.

Algorithm (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2, equations 21 to 23; as
a recursive drafter in FastMTP, arXiv 2509.18362). With h_t the target's last state at position t and E its
embedding:

    x_t = fc(cat(norm_e(E[token t+1]), norm_h(h_t)))              MiMo joins them the other way round
    y_t = layer(x_t)                                              one decoder layer, at rotary position t
    logits of token t+2 = head(norm(y_t))                         the target's head, the module's own norm
    h_{t+1} = norm(y_t)                                           from the second draft on

Whether h is taken before or after the norm cannot be seen from a checkpoint, and the wrong choice only
lowers acceptance. For the first draft the norm is the target's final one, for the next ones the module's.
Qwen's, MiMo's and speculators' modules use the normed state for both; for DeepSeek's and GLM's, reports
differ. `hidden` and `recycled` choose each separately, `post` or `pre`; the layout has a default.

A published module is mostly trained for one draft; using it again is off its training, and acceptance falls
with the place in the draft. Ours is trained on its own states, as FastMTP's is. The law handed over is the
softmax over the full vocabulary, or over the ids of a token map (FastMTP's compressed vocabulary): the
target's head is larger than the module.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, Card, Claim, Drafter, DraftSampler, Target
from draftboard_drafters import checkpoints
from draftboard_drafters._layers import DecoderLayer, Geometry, KVCache, Rope, Rows, joined, part
from draftboard_drafters._serial import SerialDrafter
from draftboard_drafters.checkpoints import Checkpoint, Plan, Serial, Served, Spec, serial
from draftboard_drafters.checkpoints.random import randomised
from draftboard_drafters.checkpoints.shipped import located
from draftboard_drafters.checkpoints.token_maps import ALL, token_map_of

Side = Literal["post", "pre"]
"""After the norm or before it."""

_NVIDIA = "articles about NVIDIA's selection table of 2 Sep 2026"

CARD = Card(
    label="MTP",
    order=40,
    mechanism="A layer that was trained with the target predicts one token more, again and again.",
    needs="The last state, the embedding and the head; a module trained with the target.",
    drafting="serial",
    training_cost=Claim("must be trained with the target from pre-training", _NVIDIA, second_hand=True),
    claims=(
        Claim("the best choice for large models on GPUs", _NVIDIA, second_hand=True),
        Claim(
            "the second token accepted 85 to 90 % of the time, 1.8x tokens per second on DeepSeek-V3",
            "DeepSeek-V3 technical report, arXiv 2412.19437",
            second_hand=True,
        ),
    ),
    when_to_use="When the target comes with a module.",
    serving_name="mtp",
)


class MtpStep:
    """The network; see the module's docstring."""

    def __init__(self, checkpoint: Checkpoint, served: Served) -> None:
        assert checkpoint.serial is not None
        shape, tensors = checkpoint.geometry, served.tensors
        self.embedding_first = checkpoint.serial.embedding_first
        self.embedding_norm = shape.norm(tensors["embedding_norm.weight"])
        self.hidden_norm = shape.norm(tensors["hidden_norm.weight"])
        self.fc = joined(tensors, "fc")
        self.layer = DecoderLayer(part(tensors, "layers.0."), shape)

    def fuse(self, taps: Tensor) -> Tensor:
        """h [n, H] from the one tap [n, 1, H]."""
        return taps[:, 0]

    def __call__(self, embedded: Tensor, feature: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """y [n, H] from embeddings and features [n, H] of the rows' positions."""
        parts = [self.embedding_norm(embedded), self.hidden_norm(feature)]
        x = self.fc(torch.cat(parts if self.embedding_first else parts[::-1], dim=-1))
        return self.layer(x, rows, cache, 0)


def drafter(
    checkpoint: Checkpoint,
    target: Target,
    sampler: DraftSampler,
    num_speculative_tokens: int | None,
    hidden: Side | None = None,
    recycled: Side | None = None,
    only: Tensor | None = None,
) -> SerialDrafter:
    """A drafter from a checkpoint that fits the target, for the ids in `only`. Raises UserError where it does
    not."""
    served, switches = checkpoints.serve(checkpoint, target, only), checkpoint.serial
    assert switches is not None
    if hidden is not None:
        tap = FINAL_NORM if hidden == "post" else target.num_layers
        checkpoint = dataclasses.replace(checkpoint, taps=(tap,))
    if recycled is not None:
        switches = dataclasses.replace(switches, recycle_normed=recycled == "post")
    checkpoint = dataclasses.replace(checkpoint, serial=switches)
    step = MtpStep(checkpoint, served)
    return SerialDrafter(checkpoint, served, target, sampler, step, num_speculative_tokens)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    checkpoint: str,
    revision: str | None = None,
    num_speculative_tokens: int | None = None,
    hidden: Side | None = None,
    recycled: Side | None = None,
    token_map: str = ALL,
) -> Drafter:
    """An MTP drafter: the target's own, where that carries the module, or one in speculators layout.

    `checkpoint` is a folder, a hub id, or `shipped` for the weights in this repository.

    K defaults to the drafts trained for and may be any. `hidden` is the side of the target's final norm on
    which the first draft's state is taken, `recycled` the side of the module's norm for the next ones; None
    is the layout's choice. `token_map` says which ids are drafted: `all`, `own` for the list that lies
    beside the weights (ours: the ids that their loss read), or a file with a JSON list. Raises UserError for
    a checkpoint or map that cannot be read or run, is another method's, or does not fit the target.
    """
    where = located(checkpoint, "mtp", target)
    loaded, only = checkpoints.load_as("mtp", where, revision), token_map_of(token_map, where, target)
    return drafter(loaded, target, sampler, num_speculative_tokens, hidden, recycled, only)


def example(
    target: Target,
    sampler: DraftSampler,
    *,
    num_speculative_tokens: int = 3,
    hidden: Side | None = None,
    recycled: Side | None = None,
) -> Drafter:
    """A tiny MTP module with random weights that fits the target, for checks without a checkpoint."""
    spec = Spec(
        method="mtp",
        layout="none",
        taps=(FINAL_NORM,),
        k=1,
        geometry=Geometry(
            hidden_size=target.hidden_size,
            intermediate_size=2 * target.hidden_size,
            heads=4,
            kv_heads=2,
            head_dim=16,
            eps=1e-6,
            qk_norm=True,
            output_gate=True,
            zero_centred_norms=True,
        ),
        rope=Rope(
            {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, target.max_context
        ),
        layers=1,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        serial=Serial(recycle_normed=True),
    )
    checkpoint = randomised(Plan(spec, serial.mtp(spec, serial.PLAIN_KEYS)))
    return drafter(checkpoint, target, sampler, num_speculative_tokens, hidden, recycled)
