"""Whether a target's cache can be cut back: by what its configuration says, then by trying it."""

from __future__ import annotations

from typing import Any

import torch

from draftboard.errors import UserError
from draftboard.measure.target import TargetModel

_REWIND_TOLERANCE = 1e-2
"""Largest relative change of logits that a rewound cache may show: float noise, not another context."""


def refuse_uncuttable(config: Any, max_context: int) -> None:
    """Raises UserError for a model whose cache cannot be cut back, naming the reason.

    Verification writes guesses into the cache, and a rejected guess must leave no trace. Recurrent and
    linear-attention states cannot forget, and a ring-buffer window has overwritten what it would need.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    stateful = sorted(kinds - {"full_attention", "sliding_attention"})
    if stateful:
        raise uncuttable(config, f"some of its layers are {stateful[0]}, whose state cannot be rolled back")
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if window and slides and window < max_context:
        raise UserError(
            f"target of type {config.model_type} attends to a sliding window of {window} positions, whose"
            f" ring buffer cannot be rolled back once it is full, and the run may need {max_context};"
            " ask for shorter prompts or fewer --max-new-tokens"
        )


def check_rewind(target: TargetModel) -> None:
    """Proves on this very model that cutting the cache back leaves no trace. Raises UserError if it does."""
    size = min(target.vocab_size, 32)
    prompt, wrong = torch.arange(4, device=target.device) % size, torch.arange(6, device=target.device) % size
    with torch.inference_mode():
        target.begin(())
        target.prefill(prompt)
        if target.length != len(prompt):
            raise uncuttable(target.config, "it does not keep its past in the cache it is given")
        fresh, _ = target.extend(wrong[:1])
        target.truncate(len(prompt))
        target.extend(wrong.flip(0))
        target.truncate(len(prompt))
        again, _ = target.extend(wrong[:1])
        target.begin(())
    change = (again.float() - fresh.float()).abs().max() / fresh.float().abs().max().clamp(min=1e-6)
    if not change < _REWIND_TOLERANCE:
        raise uncuttable(
            target.config, f"after a roll-back its logits differ by {float(change):.1%} from those before"
        )


def uncuttable(config: Any, reason: str) -> UserError:
    """The error for a target whose cache cannot be cut back."""
    return UserError(
        f"target of type {config.model_type} cannot be used: {reason};"
        " speculative decoding needs a cache that can be cut back (dense attention)"
    )
