"""The target: both forwards against transformers run afresh, taps, cuts, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from draftboard.drafter import FINAL_NORM
from draftboard.measure import fused
from draftboard.measure.compiled import kernels
from draftboard.measure.target import TargetModel
from scripted import Scripted, always
from tiny import plain_greedy, tiny_model
from watched import run

Changes = dict[str, Any]

NINE_HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
BIASED = {"attention_bias": True, "mlp_bias": True}

FUSED: dict[str, tuple[str, Changes]] = {
    "llama": ("llama", {}),
    "llama-tied-G1": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-G3": ("llama", NINE_HEADS),
    "llama-biases": ("llama", BIASED),
    "llama-wide-heads": ("llama", {"head_dim": 16}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "mistral": ("mistral", {"sliding_window": 256}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-G3": ("qwen2", {"tie_word_embeddings": True, **NINE_HEADS}),
    "qwen3": ("qwen3", {}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": YARN}),
    "qwen3-tied-G1": ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
}
UNKNOWN_TO_FUSED: dict[str, tuple[str, Changes]] = {
    "gpt_neox": ("gpt_neox", {}),
    "phi": ("phi", {}),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {}),
    "opt": ("opt", {}),
    "gemma2": ("gemma2", {"sliding_window": 256}),
    "cohere2": ("cohere2", {"sliding_window": 256}),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    "llama-dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
}
fused_families = pytest.mark.parametrize("family", FUSED)
FAST = ["fused"] if kernels() is None else ["compiled", "fused"]
all_forwards = pytest.mark.parametrize("forward", [*FAST, "module"])
TAPS = (0, FINAL_NORM, 2, 3)


def rough(family: str, **changes: Any) -> Any:
    """A tiny model whose norms and biases are random too, so that one left out or swapped shows."""
    model = tiny_model(family, initializer_range=0.1, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) * 0.2
    return model


def as_target(model: Any, forward: str = FAST[0], max_context: int = 128, **options: Any) -> TargetModel:
    options = {"stop_ids": frozenset(), **options}
    target = TargetModel(model, id="tiny", max_context=max_context, fused=forward != "module", **options)
    if forward == "fused":
        target.forward.steps = None  # type: ignore[attr-defined]
    assert target.forward.name == forward
    return target


def norm_of(model: Any) -> nn.Module:
    names = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
    return next(child for name, child in model.get_decoder().named_children() if name in names)


def afresh(model: Any, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and the states at TAPS [n, L, H] of transformers' own run without a cache."""
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 3)
    seen: dict[int, Tensor] = {}

    def keep(tap: int) -> Callable[..., None]:
        return lambda module, args, output: seen.update({tap: output[0] if output.dim() == 3 else output})

    modules = {FINAL_NORM: norm_of(model), 2: blocks[1], 3: blocks[2]}
    handles = [module.register_forward_hook(keep(tap)) for tap, module in modules.items()]
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    for handle in handles:
        handle.remove()
    seen[0] = output.hidden_states[0][0]
    return output.logits[0], torch.stack([seen[tap] for tap in TAPS], dim=1)


def close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], rows: int) -> None:
    logits, features = found
    torch.testing.assert_close(logits, expected[0][-len(logits) :], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(features, expected[1][-rows:], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def follows_transformers(model: Any, target: TargetModel) -> None:
    """Prefill, then extensions by 1 to 8 rows, each first with rows that are cut away in part or whole."""
    ids = torch.randint(0, 96, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    whole, held = afresh(model, ids), ids[:5]
    target.begin(TAPS)
    logits, features = target.prefill(torch.tensor(held))
    assert len(logits) == 1
    close((logits, features), (whole[0][:5], whole[1][:5]), 5)
    for rows in range(1, 9):
        kept = len(held) + rows // 2
        trial = ids[len(held) : kept] + [(token + 1) % 96 for token in ids[kept : kept + 6]]
        close(target.extend(torch.tensor(trial)), afresh(model, held + trial), len(trial))
        target.truncate(kept)
        end = len(held) + rows
        found = target.extend(torch.tensor(ids[kept:end]))
        assert len(found[0]) == end - kept
        close(found, (whole[0][:end], whole[1][:end]), end - kept)
        held = ids[:end]
        assert target.length == end


@all_forwards
@fused_families
def test_forward_equals_transformers_run_afresh(family: str, forward: str) -> None:
    model = rough(FUSED[family][0], **FUSED[family][1])
    follows_transformers(model, as_target(model, forward))


@pytest.mark.parametrize("family", UNKNOWN_TO_FUSED)
def test_families_unknown_to_the_fused_forward_run_as_modules(family: str) -> None:
    model = rough(UNKNOWN_TO_FUSED[family][0], **UNKNOWN_TO_FUSED[family][1])
    assert not fused.fits(model.config)
    target = TargetModel(model, id="tiny", max_context=128)
    assert target.forward.name == "module"
    follows_transformers(model, target)


@fused_families
def test_greedy_text_is_transformers(family: str) -> None:
    model = rough(FUSED[family][0], **FUSED[family][1])
    prompt = [5, 17, 60, 2]
    plain = plain_greedy(model, prompt, 12)
    for forward in ("fused", "module"):
        target = as_target(model, forward)
        reply = run(target, Scripted(always()), 12, prompt)
        assert list(reply.token_ids) == plain


@all_forwards
@torch.inference_mode()
def test_one_row_at_a_time_from_an_empty_cache(forward: str) -> None:
    model = rough("qwen3")
    target, ids = as_target(model, forward), [9, 4, 7]
    target.begin(TAPS)
    for end in (1, 2, 3):
        run = target.prefill if end == 1 else target.extend
        close(run(torch.tensor(ids[end - 1 : end])), afresh(model, ids[:end]), 1)
    target.truncate(0)
    close(target.extend(torch.tensor(ids)), afresh(model, ids), 3)


@all_forwards
@torch.inference_mode()
def test_what_drafters_may_ask_of_a_target(forward: str) -> None:
    model = rough("qwen2")
    target, ids = as_target(model, forward), torch.tensor([3, 8, 1, 90])
    target.begin((0, 3, FINAL_NORM))
    logits, features = target.extend(ids)
    assert torch.equal(target.embed(ids), features[:, 0])
    torch.testing.assert_close(target.final_norm(features[:, 1]), features[:, 2])
    torch.testing.assert_close(target.head(features[:, 2]), logits)
    assert (target.vocab_size, target.hidden_size, target.num_layers) == (96, 32, 3)
    assert (target.dtype, target.device, target.max_context) == (torch.float32, torch.device("cpu"), 128)


@all_forwards
@torch.inference_mode()
def test_taps_come_in_the_order_asked_for_and_may_be_none(forward: str) -> None:
    target, ids = as_target(rough("llama"), forward), torch.tensor([3, 8, 1])
    target.begin((2, 0, 2))
    _, mixed = target.prefill(ids)
    target.begin((0, 2))
    _, plain = target.prefill(ids)
    assert torch.equal(mixed, plain[:, [1, 0, 1]])
    target.begin(())
    assert target.prefill(ids)[1].shape == (3, 0, 32)
    assert target.extend(ids[:2])[1].shape == (2, 0, 32)


@all_forwards
def test_hooks_are_gone_after_each_forward(forward: str) -> None:
    model = rough("llama")
    target = as_target(model, forward)
    target.begin(TAPS)
    with torch.inference_mode():
        target.prefill(torch.tensor([1, 2]))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("tap", [-2, 4])
def test_a_tap_that_does_not_exist_is_refused(tap: int) -> None:
    with pytest.raises(ValueError, match=f"tap {tap} does not exist; the target has taps -1 to 3"):
        as_target(rough("llama")).begin((0, tap))


def test_bfloat16_stays_near_float32() -> None:
    exact = as_target(tiny_model("llama", initializer_range=0.05))
    narrow = as_target(tiny_model("llama", initializer_range=0.05).to(torch.bfloat16))
    ids = torch.arange(20)
    with torch.inference_mode():
        for target in (exact, narrow):
            target.begin((0, 3))
            target.prefill(ids[:12])
        expected, (logits, features) = exact.extend(ids[12:]), narrow.extend(ids[12:])
    assert features.dtype is torch.bfloat16
    assert (logits.float() - expected[0]).abs().max() < 0.05 * expected[0].abs().max()
