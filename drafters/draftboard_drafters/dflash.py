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

from torch import Tensor

from draftboard.drafter import Card, Claim, Drafter, DraftSampler, Target
from draftboard.measure.graphs import Results
from draftboard_drafters import checkpoints
from draftboard_drafters._block import BlockDrafter
from draftboard_drafters.checkpoints import Checkpoint
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


class DFlash(BlockDrafter):
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
        super().__init__(checkpoint, served, target, sampler, num_speculative_tokens)

    def guess(self, hidden: Tensor, anchor: Tensor, numbers: Tensor | None) -> Results:
        """See `BlockDrafter`."""
        return self.vocabulary.draw(self.sampler, self.vocabulary.logits(hidden), numbers)


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
