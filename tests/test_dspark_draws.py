"""What DSpark draws and where it cuts, on random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import dspark
from draftboard_drafters.checkpoints.random import random_block_drafter
from tiny import tiny_target


def random_drafter(temperature: float, threshold: float = 0.0, **block: Any) -> dspark.DSpark:
    """A random drafter after a short prompt on a tiny target."""
    target = tiny_target("qwen3")
    sampler = Sampler(Sampling(temperature), Randomness(3, target.device))
    options = {"block_size": 4, "anchor_predicts": True, "markov": "vanilla", "markov_rank": 4, **block}
    checkpoint = random_block_drafter("dspark", target, **options)
    drafter = dspark.DSpark(checkpoint, target, sampler, None, threshold)
    target.begin(drafter.taps)
    tokens = torch.tensor([3, 1, 4, 1, 5])
    drafter.prefill(tokens, target.prefill(tokens[:-1])[1])
    return drafter


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn"])
@torch.inference_mode()
def test_the_law_is_the_corrected_one(markov: str) -> None:
    """At temperature 1 the law of x_k is the softmax of U_k + bias after x_{k-1}, not that of U_k."""
    drafter = random_drafter(1.0, markov=markov)
    draft = drafter.propose(4)
    assert draft.probs is not None
    hidden = drafter.backbone.block()
    base, state = drafter.vocabulary.logits(hidden), hidden.new_zeros(1, 4)
    before = torch.cat([drafter.backbone.anchor, draft.tokens[:-1]])
    for k in range(4):
        latent, state = drafter.markov.latent(drafter.previous[before[k : k + 1]], hidden[k : k + 1], state)
        corrected = base[k] + drafter.bias(latent)[0]
        torch.testing.assert_close(draft.probs[k], corrected.softmax(-1), atol=1e-5, rtol=1e-4)
        assert (draft.probs[k] - base[k].softmax(-1)).abs().max() > 1e-3


@torch.inference_mode()
def test_a_cut_does_not_look_at_what_it_cuts() -> None:
    """Confidence k is the same whatever token k and those after it were drawn."""
    drafter = random_drafter(1.0, confidence="hidden and previous token")
    by_prefix: dict[tuple[int, ...], Tensor] = {}
    for _ in range(60):
        draft = drafter.propose(4)
        assert draft.confidence is not None
        for k in range(4):
            prefix = tuple(draft.tokens[:k].tolist())
            known = by_prefix.setdefault(prefix, draft.confidence[k])
            torch.testing.assert_close(known, draft.confidence[k])
    assert len({len(prefix) for prefix in by_prefix}) == 4


@torch.inference_mode()
def test_a_threshold_cuts_before_the_first_doubtful_draft() -> None:
    whole = random_drafter(0.0, confidence="hidden").propose(4)
    assert whole.confidence is not None
    for threshold in sorted(whole.confidence.tolist()) + [1.0]:
        sure = [c >= threshold for c in whole.confidence.tolist()]
        expected = sure.index(False) if False in sure else 4
        cut = random_drafter(0.0, threshold, confidence="hidden").propose(4)
        assert cut.tokens.tolist() == whole.tokens[:expected].tolist()
        assert cut.confidence is not None and len(cut.confidence) == expected


@pytest.mark.parametrize(
    ("threshold", "confidence", "message"),
    [(0.5, None, "has no confidence head"), (1.5, "hidden", "has a confidence between 0 and 1")],
)
def test_a_threshold_without_meaning_is_refused(threshold: float, confidence: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        random_drafter(0.0, threshold, confidence=confidence)
