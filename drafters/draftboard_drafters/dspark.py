"""DSpark: DFlash's block in one forward, then a light head that reads it left to right.

Algorithm (X. Cheng, X. Yu, J. Shao, J. Li, Y. Xiong et al., "DSpark: Confidence-Scheduled Speculative
Decoding with Semi-Autoregressive Generation", arXiv 2607.05147; reference implementation
github.com/deepseek-ai/DeepSpec). The backbone is DFlash's (see `dflash`); in DeepSpec's checkpoints the
anchor's slot predicts too, so a block of B slots drafts B tokens. Parallel slots do not know each other's
choices; the Markov head corrects slot k by the token before it, x_0 being the anchor:

    h_1..h_K = backbone(anchor, MASK, ...)        U_k = head(h_k)        e_k = W1[x_{k-1}]
    l_k = U_k + W2 z_k                            x_k ~ softmax(l_k / T)

    vanilla   z_k = e_k
    gated     z_k = sigmoid(Wg [h_k ; e_k] + b) * e_k
    rnn       (g, c, o) = W [s ; e_k ; h_k] + b,  z_k = tanh(o),
              s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c),  s = 0 at first

W1 has a row for every id of the target, W2 one for every row of the head. The law handed over is
softmax(l_k / T), the exact conditional of x_k after x_1..x_{k-1}; that of U_k would be another.

The confidence head estimates whether draft k passes, given that all before it did:

    c_k = sigmoid(w . [h_k ; e_k] + b)            or from h_k alone

c_k is known before x_k is drawn, so cutting the draft before the first k with c_k below a threshold decides
on x_k without looking at it, and stays lossless; a rule that looked at c_{k+1} would not (appendix A). The
threshold is static here; the paper's scheduler, which sets it by the load of a serving batch, needs a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftboard.drafter import Card, Claim, Draft, Drafter, DraftSampler, Target, UserError
from draftboard.measure.graphs import Results
from draftboard_drafters import checkpoints
from draftboard_drafters._block import BlockDrafter
from draftboard_drafters._layers import joined
from draftboard_drafters._markov import HEADS, MarkovHead
from draftboard_drafters.checkpoints import Checkpoint
from draftboard_drafters.checkpoints.random import random_block_drafter
from draftboard_drafters.checkpoints.record import Markov
from draftboard_drafters.checkpoints.shipped import located

_NVIDIA = "articles about NVIDIA's selection table of 2 Sep 2026"
_PAPER = "DSpark paper, arXiv 2607.05147, table 1"

CARD = Card(
    label="DSpark",
    order=60,
    mechanism="DFlash's parallel block, corrected left to right by a light serial head.",
    needs="States of a few layers, the embedding and the head.",
    drafting="parallel",
    training_cost=Claim(
        "1.3 M prompts answered by the target, 10 epochs", "DSpark paper, arXiv 2607.05147, and its code"
    ),
    claims=(
        Claim("acceptance about 30 % over EAGLE-3 and 18 % over DFlash", _NVIDIA, second_hand=True),
        Claim("60 to 85 % faster than MTP in DeepSeek V4's production", _NVIDIA, second_hand=True),
        Claim(
            "acceptance length on Qwen3-8B at temperature 1: GSM8K 6.17, HumanEval 5.52, MT-Bench 3.72;"
            " DFlash 5.33, 4.64, 3.11; EAGLE-3 5.30, 4.33, 2.66",
            _PAPER,
        ),
    ),
    when_to_use="When a checkpoint for the target exists; its confidence also says when to verify less.",
    serving_name="dspark",
)


class DSpark(BlockDrafter):
    """Draws the block's tokens one after the other; see the module's docstring."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        target: Target,
        sampler: DraftSampler,
        num_speculative_tokens: int | None,
        confidence_threshold: float = 0.0,
    ) -> None:
        """A drafter from a checkpoint that fits the target. Raises UserError where it does not."""
        assert checkpoint.parallel is not None and checkpoint.parallel.markov is not None
        self.reads = checkpoint.parallel.confidence
        if not 0 <= confidence_threshold <= 1 or (confidence_threshold > 0 and self.reads is None):
            has = "no confidence head" if self.reads is None else "a confidence between 0 and 1"
            raise UserError(f"confidence_threshold is {confidence_threshold}; {checkpoint.path} has {has}")
        served = checkpoints.serve(checkpoint, target)
        super().__init__(checkpoint, served, target, sampler, num_speculative_tokens)
        tensors, self.threshold = served.tensors, confidence_threshold
        self.markov: MarkovHead = HEADS[checkpoint.parallel.markov](tensors)
        self.previous = tensors["markov_head.markov_w1.weight"]
        self.bias = joined(tensors, "markov_head.markov_w2")
        self.sure = None if self.reads is None else joined(tensors, "confidence_head.proj")

    def guess(self, hidden: Tensor, anchor: Tensor, numbers: Tensor | None) -> Results:
        """See `BlockDrafter`."""
        tokens, laws, embedded = self._read(hidden, anchor, numbers)
        return tokens, laws, self._confidence(hidden, embedded)

    def kept(self, draft: Draft) -> int:
        """Drafts before the first whose confidence is below the threshold. Only with one the host waits."""
        if draft.confidence is None or self.threshold == 0:
            return self.num_speculative_tokens
        return int((draft.confidence >= self.threshold).long().cumprod(0).sum())

    def _read(
        self, hidden: Tensor, anchor: Tensor, numbers: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Tokens [K], their laws [K, V], and the embeddings e_k [K, r] each was corrected by."""
        base = self.vocabulary.logits(hidden)
        token, state = anchor, hidden.new_zeros(1, self.previous.shape[1])
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        embedded: list[Tensor] = []
        own = [None] * len(hidden) if numbers is None else torch.split(numbers, 1)
        for states, logits, number in zip(torch.split(hidden, 1), torch.split(base, 1), own, strict=True):
            embedded.append(F.embedding(token, self.previous))
            latent, state = self.markov.latent(embedded[-1], states, state)
            token, law = self.vocabulary.draw(self.sampler, logits + self.bias(latent), number)
            tokens.append(token)
            laws += [] if law is None else [law]
        return torch.cat(tokens), torch.cat(laws) if laws else None, torch.cat(embedded)

    def _confidence(self, hidden: Tensor, embedded: Tensor) -> Tensor | None:
        """c_1..c_K, float32, or None without a confidence head."""
        if self.sure is None:
            return None
        read = hidden if self.reads == "hidden" else torch.cat([hidden, embedded], dim=-1)
        return torch.sigmoid(self.sure(read).float())[:, 0]


def drafter(
    checkpoint: Checkpoint,
    target: Target,
    sampler: DraftSampler,
    num_speculative_tokens: int | None,
    confidence_threshold: float = 0.0,
) -> DSpark:
    """A drafter from a checkpoint that fits the target. Raises UserError where it does not."""
    return DSpark(checkpoint, target, sampler, num_speculative_tokens, confidence_threshold)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    checkpoint: str,
    revision: str | None = None,
    num_speculative_tokens: int | None = None,
    confidence_threshold: float = 0.0,
) -> Drafter:
    """A DSpark drafter in DeepSpec or speculators layout.

    `checkpoint` is a folder, a hub id, or `shipped` for the weights in this repository.

    K defaults to what the checkpoint was trained for; `confidence_threshold` 0 never cuts. Raises UserError
    for a checkpoint that cannot be read, is another method's, does not fit the target, was trained for fewer
    drafts than asked for, or has no confidence head to compare with the threshold.
    """
    loaded = checkpoints.load_as("dspark", located(checkpoint, "dspark", target), revision)
    return drafter(loaded, target, sampler, num_speculative_tokens, confidence_threshold)


def example(
    target: Target,
    sampler: DraftSampler,
    *,
    num_speculative_tokens: int = 3,
    markov: Markov = "gated",
    confidence_threshold: float = 0.0,
) -> Drafter:
    """A tiny DSpark with random weights that fits the target, for checks without a checkpoint."""
    checkpoint = random_block_drafter(
        "dspark",
        target,
        block_size=num_speculative_tokens,
        anchor_predicts=True,
        markov=markov,
        markov_rank=8,
        confidence="hidden and previous token",
    )
    return drafter(checkpoint, target, sampler, None, confidence_threshold)
