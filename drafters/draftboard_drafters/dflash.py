"""DFlash: one forward of a small stack fills a whole block of mask tokens.

Algorithm (J. Chen, Y. Liang, Z. Liu, "DFlash: Block Diffusion for Flash Speculative Decoding",
arXiv 2602.06036; reference implementation github.com/z-lab/dflash). The target's tapped states at every
committed position before the newest token, the anchor at position s, are fused once into a context:

    c = hidden_norm(fc(cat(taps)))                                   positions 0 .. s-1
    x = E[anchor, MASK, ..., MASK]                                   positions s .. s+B-1
    in each layer:  K = k_norm(Wk [c ; ln(x)])    V = Wv [c ; ln(x)]    Q = q_norm(Wq ln(x))
                    x = x + Wo attention(rope(Q), rope(K), V) ;  x = x + SwiGLU(ln'(x))
    logits = head(norm(x))

The context enters as keys and values only, the same c in every layer and without the layer's input norm. The
block sees itself in both directions and all of the context; layers with a window see what their `Sight` says.
There are two readings of the slots, and a checkpoint was trained for one of them:

    slot j predicts the token at slot j      slot 0 is thrown away, B slots draft B-1     (z-lab)
    slot j predicts the token after slot j   the anchor's slot counts, B slots draft B    (DeepSpec)

Given the context the slots are independent, so each draft token is drawn from its own softmax, and that is
the law handed over. A K below the trained one is a shorter run of masks through the same weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import Card, Claim, Draft, Drafter, DraftSampler, Target, UserError
from draftboard_drafters import checkpoints
from draftboard_drafters._layers import DecoderLayer, KVCache, Rotary, joined, part, rotate
from draftboard_drafters.checkpoints import Checkpoint, Served
from draftboard_drafters.checkpoints.random import random_block_drafter
from draftboard_drafters.checkpoints.shipped import located

_NVIDIA = "articles about NVIDIA's selection table of 2 Sep 2026"

CARD = Card(
    label="DFlash",
    order=50,
    mechanism="A small stack fed with the target's states fills a block of masks in one forward.",
    needs="States of a few layers, the embedding and the head.",
    drafting="parallel",
    training_cost=Claim(
        "about 800,000 target-written samples for Qwen3", "abstract of the DFlare paper", second_hand=True
    ),
    claims=(
        Claim("one forward drafts the block; 6x, lossless", _NVIDIA, second_hand=True),
        Claim(
            "up to 6.17x on Qwen3-8B with transformers at temperature 0, about 2.5x EAGLE-3",
            "z-lab's blog on DFlash",
            second_hand=True,
        ),
        Claim(
            "acceptance length 5.33 on GSM8K and 3.11 on MT-Bench for Qwen3-8B, retrained with blocks of 7,"
            " temperature 1",
            "DSpark paper, arXiv 2607.05147, table 1",
        ),
    ),
    when_to_use="When a checkpoint for the target exists and drafting serially costs more than it gains.",
    serving_name="dflash",
)


class Backbone:
    """The stack and its context, one sequence at a time. DSpark stands on it too.

    The cache holds keys and values of committed positions only, rotated and normed; those of a block are
    written behind its end and overwritten by the next context.
    """

    def __init__(self, checkpoint: Checkpoint, served: Served, target: Target, drafts: int) -> None:
        """A stack that drafts `drafts` tokens a block."""
        assert checkpoint.parallel is not None
        shape, tensors, block = checkpoint.geometry, served.tensors, checkpoint.parallel
        self.geometry, self.sights = shape, block.sights
        self.first = 0 if block.anchor_predicts else 1
        masks = drafts + self.first - 1
        self.masks = torch.full((masks,), block.mask_id, dtype=torch.int64, device=target.device)
        self.embed = served.vocabulary.embed
        self.fuse, self.context_norm = joined(tensors, "fc"), shape.norm(tensors["hidden_norm.weight"])
        stack = [part(tensors, f"layers.{layer}.") for layer in range(checkpoint.layers)]
        self.layers = [DecoderLayer(parameters, shape) for parameters in stack]
        self.norm = shape.norm(tensors["norm.weight"])
        # Every layer projects the same context, so all their keys and values are one product.
        self.context_kv = joined(
            {f"{i}.{name}": tensor for i, layer in enumerate(stack) for name, tensor in layer.items()},
            *(f"{i}.self_attn.{name}_proj" for i in range(checkpoint.layers) for name in "kv"),
        )
        self.k_norms = torch.stack([layer.attention.k_norm.weight for layer in self.layers])
        capacity = target.max_context + masks + 1
        self.cache = KVCache(
            checkpoint.layers, shape.kv_heads, shape.head_dim, capacity, target.dtype, target.device
        )
        self.rotary = Rotary(checkpoint.rope, shape.head_dim, capacity, target.dtype, target.device)

    def forget(self) -> None:
        """Drops the sequence."""
        self.cache.truncate(0)

    def absorb(self, tokens: Tensor, features: Tensor) -> None:
        """Adds the context of m committed positions, features [m, T, H]; the newest token is the anchor."""
        self.anchor = tokens[-1:]
        place, shape = self.cache.reserve(len(features)), self.geometry
        context = self.context_norm(self.fuse(features.flatten(1)))
        kv = self.context_kv(context).view(len(context), len(self.layers), 2, shape.kv_heads, shape.head_dim)
        keys = F.rms_norm(kv[:, :, 0], (shape.head_dim,), None, shape.eps) * self.k_norms[:, None]
        turned = rotate(keys.flatten(1, 2), self.rotary.at(place)).view_as(keys)
        self.cache.keys[:, :, place] = turned.permute(1, 2, 0, 3)
        self.cache.values[:, :, place] = kv[:, :, 1].permute(1, 2, 0, 3)
        self.cache.length = place.stop

    def block(self) -> Tensor:
        """States [K, H] past the final norm, one for each token to draft."""
        x = self.embed(torch.cat([self.anchor, self.masks]))
        place = self.cache.reserve(len(x))
        angles = self.rotary.at(place)
        masks = {sight: sight.mask(place, x.device) for sight in set(self.sights)}
        for index, (layer, sight) in enumerate(zip(self.layers, self.sights, strict=True)):
            x = layer(x, angles, self.cache, index, place, masks[sight])
        return self.norm(x)[self.first :]


class DFlash:
    """Draws every slot of the block at once; see the module's docstring."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        target: Target,
        sampler: DraftSampler,
        num_speculative_tokens: int | None,
    ) -> None:
        """A drafter from a checkpoint that fits the target. Raises UserError where it does not."""
        served = checkpoints.serve(checkpoint, target)
        self.taps, self.weights = checkpoint.taps, served.weights
        self.num_speculative_tokens = drafts_asked(checkpoint, num_speculative_tokens)
        self.backbone = Backbone(checkpoint, served, target, self.num_speculative_tokens)
        self.vocabulary, self.sampler = served.vocabulary, sampler

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Takes the prompt as context."""
        self.release()
        self.backbone.absorb(tokens, features)

    def propose(self, limit: int) -> Draft:
        """Drafts the block and hands over its first `limit` tokens."""
        logits = self.vocabulary.logits(self.backbone.block())
        tokens, laws = self.vocabulary.draw(self.sampler, logits)
        return Draft(tokens[:limit], None if laws is None else laws[:limit])

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Takes the committed positions as context."""
        self.backbone.absorb(tokens, features)

    def release(self) -> None:
        """Forgets the context."""
        self.backbone.forget()


def drafts_asked(checkpoint: Checkpoint, num_speculative_tokens: int | None) -> int:
    """K for this run: the checkpoint's own, or fewer. Raises UserError for more than it was trained for."""
    k = checkpoint.k if num_speculative_tokens is None else num_speculative_tokens
    if not 1 <= k <= checkpoint.k:
        raise UserError(
            f"num_speculative_tokens is {k}, and {checkpoint.path} was trained for blocks of {checkpoint.k}"
            f" drafts; choose 1 to {checkpoint.k}"
        )
    return k


def drafter(
    checkpoint: Checkpoint, target: Target, sampler: DraftSampler, num_speculative_tokens: int | None
) -> DFlash:
    """A drafter from a checkpoint that fits the target. Raises UserError where it does not."""
    return DFlash(checkpoint, target, sampler, num_speculative_tokens)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    checkpoint: str,
    revision: str | None = None,
    num_speculative_tokens: int | None = None,
) -> Drafter:
    """A DFlash drafter in z-lab, DeepSpec or speculators layout.

    `checkpoint` is a folder, a hub id, or `shipped` for the weights in this repository.

    K defaults to what the checkpoint was trained for. Raises UserError for a checkpoint that cannot be read,
    is another method's, does not fit the target, or was trained for fewer drafts than asked for.
    """
    loaded = checkpoints.load_as("dflash", located(checkpoint, "dflash", target), revision)
    return drafter(loaded, target, sampler, num_speculative_tokens)


def example(target: Target, sampler: DraftSampler, *, num_speculative_tokens: int = 3) -> Drafter:
    """A tiny DFlash with random weights that fits the target, for checks without a checkpoint."""
    checkpoint = random_block_drafter(
        "dflash", target, block_size=num_speculative_tokens + 1, anchor_predicts=False
    )
    return drafter(checkpoint, target, sampler, None)
