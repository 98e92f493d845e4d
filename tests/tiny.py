"""Tiny seeded targets: real transformers models, random weights, float32, built in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftboard.measure.target import TargetModel

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random causal LM of a transformers model type, with logits spread enough to have clear argmaxes."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, "initializer_range": 0.3, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def tiny_target(
    family: str = "llama",
    seed: int = 0,
    *,
    stop_ids: frozenset[int] = frozenset(),
    max_context: int = 256,
    fused: bool = True,
    **changes: Any,
) -> TargetModel:
    """`tiny_model` as a target of the engine; it never stops unless `stop_ids` says so."""
    model = tiny_model(family, seed, **changes)
    return TargetModel(
        model, id=f"tiny-{family}-{seed}", max_context=max_context, stop_ids=stop_ids, fused=fused
    )


def plain_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """`count` tokens by argmax with the whole text run afresh each time: no cache, none of our code."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
