"""From a causal LM's state past its final norm to its logits: the head, and what the model does after it.

Cohere scales its logits, Granite divides them, Gemma bends them towards a cap. A drafter that reads tokens
through the target's head has to see the target's logits, so the readout is compared with the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

AFTER: dict[str, Callable[[Tensor, float], Tensor]] = {
    "logit_scale": lambda logits, scale: logits * scale,
    "logits_scaling": lambda logits, scale: logits / scale,
    "final_logit_softcapping": lambda logits, cap: torch.tanh(logits / cap) * cap,
}
"""What configurations call an operation on the logits, and the operation."""

_ROWS, _SPREAD = 4, 8.0
"""States that are tried, and how large: a cap shows only where logits come near it."""
_TOLERANCE = 1e-2
"""Largest error relative to the largest logit: rounding, not another operation."""


class Readout:
    """Logits of a model's normed states."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self._head: nn.Module = model.get_output_embeddings()
        stated = {name: getattr(config, name, None) for name in AFTER}
        self._after = [
            (AFTER[name], value) for name, value in stated.items() if isinstance(value, int | float)
        ]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of states [n, H]."""
        logits: Tensor = self._head(hidden)
        for operation, value in self._after:
            logits = operation(logits, value)
        return logits

    @torch.inference_mode()
    def is_the_models(self, model: Any, norm: nn.Module) -> bool:
        """Whether the model says the same where `norm`, its final one, hands out some large random states."""
        width = model.config.get_text_config().hidden_size
        states = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)) * _SPREAD
        states = states.to(model.device, model.dtype)
        handle = norm.register_forward_hook(lambda module, args, output: states[None])
        try:
            ids = torch.zeros(1, _ROWS, dtype=torch.int64, device=model.device)
            said = model(input_ids=ids, use_cache=False).logits[0].float()
        finally:
            handle.remove()
        own = self(states).float()
        return said.shape == own.shape and bool((said - own).abs().max() <= _TOLERANCE * said.abs().max())
