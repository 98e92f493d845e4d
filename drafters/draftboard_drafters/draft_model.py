"""A smaller language model that drafts: it writes K tokens one by one, the target judges them at once.

Algorithm (Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding",
ICML 2023, arXiv 2211.17192, algorithm 1; C. Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", 2023, arXiv 2302.01318, algorithm 2): for i = 1..K draw x_i from its law
q_i = p_draft(. | committed, x_1..x_{i-1}), and hand over the draws with their laws. At temperature 0 each
x_i is the argmax, a point mass.

The draft keeps a cache of its own. It holds committed tokens and never more: guesses that were not kept are
cut off at `commit`. Tokens in [cached, committed) are its gap; `propose` first feeds the gap, whatever its
length, so that a fully accepted round (whose last guess was never fed) is no special case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftboard.drafter import Card, Claim, Draft, Drafter, DraftSampler, Origin, Target, UserError, Weights
from draftboard.measure.loading import (
    load_target,
    position_limit,
    resolve_dtype,
    resolve_source,
    weights_sha256,
)
from draftboard.measure.target import TargetModel
from draftboard_drafters.checkpoints.cards import training_of
from draftboard_drafters.checkpoints.shipped import located

_NVIDIA = "articles about NVIDIA's selection table of 2 Sep 2026"

CARD = Card(
    label="Draft model",
    order=20,
    mechanism="A smaller model of the same family writes the draft, one token at a time.",
    needs="The same token ids; nothing of the target's states.",
    drafting="serial",
    training_cost=Claim("1T to 10T tokens when trained from scratch", _NVIDIA, second_hand=True),
    claims=(
        Claim("kept for an LPU niche", _NVIDIA, second_hand=True),
        Claim(
            "high gain at low load, medium gain at high load; needs a separate draft model",
            "vLLM documentation, features/speculative_decoding",
        ),
    ),
    when_to_use="When a far smaller model with the target's tokenizer exists and nothing may be trained.",
    serving_name="draft_model",
)


class DraftModel:
    """One sequence of a draft model beside the target's; see the module's docstring."""

    taps: tuple[int, ...] = ()

    def __init__(
        self, target: Target, sampler: DraftSampler, model: TargetModel, k: int, weights: Weights
    ) -> None:
        """Drafts K tokens with `model`, whose token ids must be the target's (UserError otherwise)."""
        self.model, self.sampler, self.num_speculative_tokens, self.weights = model, sampler, k, weights
        self.foreign = ~shared_ids(target, model)
        self.none = torch.empty(0, dtype=torch.int64, device=target.device)
        self.release()

    def prepare(self) -> None:
        """Captures a guess and the gap after a round whose guesses were all kept: one row and two."""
        self.model.prepare((1, 2))

    def captured(self) -> tuple[int | None, str | None]:
        """See `draftboard.drafter.Captured`."""
        said = self.model.reference()
        return said.graphs, said.graphs_missing

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Runs the draft over the prompt; the first reply token is the first gap."""
        self.release()
        self.committed = tokens
        if len(tokens) <= self.model.max_context:
            self.model.prefill(tokens[:-1])

    def propose(self, limit: int) -> Draft:
        """Feeds the gap, then its own draws; nothing once the text has outgrown the draft's context."""
        room = self.model.max_context - len(self.committed) + 1
        feed = self.committed[self.model.length :]
        laws: list[Tensor] = []
        self.drafted = self.none
        for _ in range(min(limit, self.num_speculative_tokens, room)):
            logits, _ = self.model.prefill(feed)
            feed, law = self.sampler.draw(self._as_target_rows(logits))
            self.drafted = torch.cat([self.drafted, feed])
            laws += [] if law is None else [law]
        return Draft(self.drafted, torch.cat(laws) if laws else None)

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Cuts the cache to the guesses that were kept. The newest token stays in the gap: its logits are
        the next draft."""
        kept = _agreeing(self.drafted.tolist(), tokens.tolist()[:-1])
        self.model.truncate(min(self.model.length, len(self.committed) + kept))
        self.committed = torch.cat([self.committed, tokens])
        self.drafted = self.none

    def release(self) -> None:
        """Empties the draft's cache."""
        self.model.begin(())
        self.committed = self.drafted = self.none

    def _as_target_rows(self, logits: Tensor) -> Tensor:
        """Logits [1, V] from [1, V_draft]; ids that the two models do not share can not be drawn."""
        rows = len(self.foreign)
        fitted = pad(logits[:, :rows], (0, max(0, rows - logits.shape[-1])))
        return fitted.masked_fill(self.foreign, -torch.inf)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    num_speculative_tokens: int = 4,
    model: str,
    revision: str | None = None,
    dtype: str = "auto",
) -> Drafter:
    """A drafter from any causal LM with the target's token ids.

    `model` is a local folder, a hub id, the id of the embedded target, or `shipped` for the weights in this
    repository; `dtype` auto takes the target's.
    Raises UserError for a model that cannot be loaded, rewound, or does not share the target's tokenizer.
    """
    if num_speculative_tokens < 1:
        raise UserError(f"num_speculative_tokens must be at least 1, found {num_speculative_tokens}")
    source = resolve_source(located(model, "draft_model", target))
    limit = position_limit(source, revision)
    loaded = load_target(
        source,
        revision=revision,
        dtype=target.dtype if dtype == "auto" else resolve_dtype(dtype, target.device),
        device=target.device,
        max_context=target.max_context if limit is None else min(target.max_context, limit),
    )
    training = training_of(source)
    origin: Origin | None = None if Path(source).is_dir() else "published"
    weights = Weights(
        loaded.weight_bytes,
        weights_sha256(source, revision),
        "trained here" if training is not None else origin,
        training,
    )
    return DraftModel(target, sampler, loaded, num_speculative_tokens, weights)


def example(target: Target, sampler: DraftSampler, *, num_speculative_tokens: int = 4) -> Drafter:
    """A tiny draft with random weights and the target's vocabulary, for checks without a checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM  # seconds, which listing drafters need not take

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = AutoConfig.for_model(
        "llama",
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_context,
        initializer_range=0.3,
        **sizes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=target.dtype).to(target.device).eval()
    draft = TargetModel(model, id="example", max_context=target.max_context, tokenizer=target.tokenizer)
    return DraftModel(
        target, sampler, draft, num_speculative_tokens, Weights(draft.weight_bytes, None, "random")
    )


def shared_ids(target: Target, draft: TargetModel) -> Tensor:
    """bool [V]: ids that are the same token to both models. The others have q = 0.

    Compared by content. Ids that only one of the tokenizers has are not shared, and neither are special
    tokens that the two name differently. Any other difference means another tokenizer: UserError naming the
    first such id. Without tokenizers only the sizes can be compared.
    """
    shared = torch.zeros(target.vocab_size, dtype=torch.bool)
    if target.tokenizer is None and draft.tokenizer is None:
        if draft.vocab_size != target.vocab_size:
            raise _refusal(
                target,
                draft,
                f"neither has a tokenizer, and it has {draft.vocab_size} rows, not {target.vocab_size}",
            )
        return (~shared).to(target.device)
    for model in (target, draft):
        if model.tokenizer is None:
            raise _refusal(target, draft, f"{model.id!r} has no tokenizer files to compare; add them")
    ids = [i for i in _same_tokens(target, draft) if i < min(target.vocab_size, draft.vocab_size)]
    shared[ids] = True
    return shared.to(target.device)


def _same_tokens(target: Target, draft: TargetModel) -> list[int]:
    """Ids that both tokenizers spell alike, ascending; refuses a pair whose ordinary tokens differ."""
    ours, theirs = _tokens(target.tokenizer), _tokens(draft.tokenizer)
    special = target.tokenizer.added_tokens_decoder.keys() & draft.tokenizer.added_tokens_decoder.keys()
    both = sorted(ours.keys() & theirs.keys())
    for i in both:
        if ours[i] != theirs[i] and i not in special:
            raise _refusal(target, draft, f"id {i} is {theirs[i]!r} to it and {ours[i]!r} to the target")
    return [i for i in both if ours[i] == theirs[i]]


def _tokens(tokenizer: Any) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}


def _refusal(target: Target, draft: TargetModel, reason: str) -> UserError:
    return UserError(
        f"draft model {draft.id!r} cannot draft for {target.id!r}: {reason};"
        " choose a model with the target's tokenizer"
    )


def _agreeing(drafted: list[int], committed: list[int]) -> int:
    """How many committed tokens equal the drafted ones, up to the first that does not."""
    pairs = zip(drafted, committed, strict=False)
    return next(
        (i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(drafted), len(committed))
    )
