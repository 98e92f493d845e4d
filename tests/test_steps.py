"""A few rows through the kernels: the fused forward's arithmetic, and the same to the last bit whatever
number of rows shares a call."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from draftboard.drafter import FINAL_NORM
from draftboard.measure.block_parts import Heads, attention_call, mlp_call
from draftboard.measure.cache import KVCache
from draftboard.measure.compiled import kernels, kernels_missing
from draftboard.measure.linear import MOST_ROWS, pack
from draftboard.measure.target import TargetModel
from tiny import SIZES, tiny_model

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"NOT RUN: {kernels_missing()}")

CAPACITY = 160
TAPS = (0, 2, FINAL_NORM, 3, 1)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "a head for each": ("llama", {"num_key_value_heads": 4}),
    "wide heads": ("llama", {"head_dim": 80}),
    "64 to a head": ("llama", {"head_dim": 64, "num_attention_heads": 8}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "scaled angles": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                             "original_max_position_embeddings": 64}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"hidden_size": 64}),
    "qwen3": ("qwen3", {}),
}  # fmt: skip


def perturbed(family: str, changes: dict[str, Any]) -> Any:
    """A tiny model whose norms and biases differ from one another: alike, they would hide a mix-up."""
    model = tiny_model(family, **changes)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 5)
    return model


def target(name: str, dtype: torch.dtype, *, compiled: bool = True) -> TargetModel:
    family, changes = FAMILIES[name]
    found = TargetModel(perturbed(family, changes).to(dtype), id="tiny", max_context=CAPACITY)
    assert found.forward.name == "compiled"
    if not compiled:
        found.forward.steps = None  # type: ignore[attr-defined]
    return found


def widened(name: str) -> TargetModel:
    """The bfloat16 weights of `target`, computed with in float32 by torch."""
    family, changes = FAMILIES[name]
    model = perturbed(family, changes).to(torch.bfloat16).to(torch.float32)
    found = TargetModel(model, id="tiny", max_context=CAPACITY)
    found.forward.steps = None  # type: ignore[attr-defined]
    return found


def ids(count: int) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_equals_the_forward_of_torch(name: str) -> None:
    ours, theirs = target(name, torch.float32), target(name, torch.float32, compiled=False)
    text, ends = ids(CAPACITY), [40, 41, 43, 46, 50, 55, 63, 80, 112, CAPACITY]
    with torch.inference_mode():
        for each in (ours, theirs):
            each.begin(TAPS)
            each.prefill(text[:40])
        for start, stop in pairwise(ends):
            found, expected = ours.extend(text[start:stop]), theirs.extend(text[start:stop])
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, atol=3e-4, rtol=1e-4)


def test_bfloat16_is_nearer_to_float32_than_torch_is() -> None:
    """Between the weights numbers stay float32, so less is rounded than where each operator rounds."""
    ratios = []
    for name in FAMILIES:
        exact = logits_of(widened(name))
        ours, theirs = (logits_of(target(name, torch.bfloat16, compiled=way)) for way in (True, False))
        errors = [float((found - exact).square().mean()) for found in (ours, theirs)]
        ratios.append(errors[0] / errors[1])
    assert max(ratios) < 2 and statistics.geometric_mean(ratios) < 0.8, ratios


def logits_of(model: TargetModel) -> torch.Tensor:
    with torch.inference_mode():
        model.begin(TAPS)
        model.prefill(ids(60)[:40])
        logits, features = model.extend(ids(60)[40:])
    assert features.dtype is model.dtype
    return logits.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_is_the_same_whoever_shares_its_call(name: str, dtype: torch.dtype) -> None:
    """What losslessness rests on: verifying K guesses says, bit for bit, what decoding one by one says."""
    model, text = target(name, dtype), ids(40 + 2 * MOST_ROWS)
    with torch.inference_mode():
        model.begin(TAPS)
        model.prefill(text[:40])
        alone = [model.extend(token[None]) for token in text[40:]]
        for rows in (2, 3, 4, 5, 8, 13, MOST_ROWS, 2 * MOST_ROWS):
            model.truncate(40)
            found = [model.extend(part) for part in text[40:].split(rows)]
            for index in (0, 1):
                assert torch.equal(torch.cat([f[index] for f in found]), torch.cat([a[index] for a in alone]))


def test_the_number_of_threads_changes_nothing() -> None:
    model, text, threads = target("llama", torch.float32), ids(50), torch.get_num_threads()
    found = []
    with torch.inference_mode():
        model.begin(())
        model.prefill(text[:40])
        try:
            for count in (1, 2, 3, 8):
                torch.set_num_threads(count)
                found.append(model.extend(text[40:])[0])
                model.truncate(40)
        finally:
            torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("scale", [1.0, 60.0, 2000.0])
def test_a_gate_far_below_zero_lets_nothing_through(scale: float) -> None:
    """exp of its opposite has no place in float32; silu is 0 there."""
    gate_up, down = torch.randn(64, 32) * scale, torch.eye(32)
    call = mlp_call(pack(gate_up), pack(down))
    assert call is not None
    x = torch.randn(9, 32)
    gates, ups = F.linear(x, gate_up).chunk(2, dim=-1)
    torch.testing.assert_close(call(x), F.silu(gates) * ups, atol=1e-4 * scale, rtol=1e-4)


def test_rows_beyond_the_cache_and_states_of_another_width_are_refused() -> None:
    heads = Heads(heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    call = attention_call(pack(torch.randn(96, 32)), pack(torch.randn(32, 32)), heads)
    assert call is not None
    for capacity in (8, 6):  # another cache is another room
        cache = KVCache(1, 2, 16, capacity, torch.float32, torch.device("cpu"))
        angles = torch.zeros(8, 16)
        call(torch.randn(2, 32), cache, 0, capacity - 2, angles, causal=True)
        with pytest.raises(ValueError, match="do not fit"):
            call(torch.randn(3, 32), cache, 0, capacity - 2, angles, causal=True)
        with pytest.raises(ValueError, match="32 wide"):
            call(torch.randn(2, 48), cache, 0, 0, angles, causal=True)


CPU, FLOAT, HALF = torch.device("cpu"), torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("rows", "cache", "angles", "said"),
    [
        (33, KVCache(1, 2, 16, 64, FLOAT, CPU), torch.zeros(64, 16), "1 to 32 states"),
        (0, KVCache(1, 2, 16, 64, FLOAT, CPU), torch.zeros(64, 16), "1 to 32 states"),
        (1, KVCache(1, 2, 16, 64, HALF, CPU), torch.zeros(64, 16), "a cache .* of torch.float32"),
        (1, KVCache(1, 1, 16, 64, FLOAT, CPU), torch.zeros(64, 16), "a cache"),
        (1, KVCache(1, 2, 32, 64, FLOAT, CPU), torch.zeros(64, 16), "a cache"),
        (1, KVCache(1, 2, 16, 64, FLOAT, CPU), torch.zeros(64, 32), "angles 16 wide"),
        (1, KVCache(1, 2, 16, 64, FLOAT, CPU), torch.zeros(64, 16).double(), "float32 angles"),
    ],
)
def test_what_would_be_written_or_read_beyond_its_end_is_refused(
    rows: int, cache: KVCache, angles: torch.Tensor, said: str
) -> None:
    heads = Heads(heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    call = attention_call(pack(torch.randn(96, 32)), pack(torch.randn(32, 32)), heads)
    assert call is not None
    with pytest.raises(ValueError, match=said):
        call(torch.randn(rows, 32), cache, 0, 0, angles, causal=True)


def test_a_head_in_another_dtype_is_left_to_torch() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    model.lm_head.weight.data = model.lm_head.weight.data.float()
    assert TargetModel(model, id="t", max_context=32).forward.name == "fused"


def test_what_a_longer_text_left_behind_is_not_read() -> None:
    fresh, used = target("llama", torch.float32), target("llama", torch.float32)
    text = ids(60)
    with torch.inference_mode():
        used.begin(())
        used.prefill(text.flip(0))
        found = []
        for each in (fresh, used):
            each.begin(())
            each.prefill(text[:10])
            found.append(each.extend(text[10:13])[0])
    assert torch.equal(*found)


def test_sizes_that_are_no_whole_vectors_are_left_to_torch() -> None:
    for changes in ({"head_dim": 8}, {"hidden_size": 40}, {"intermediate_size": 72}):
        assert TargetModel(tiny_model(**changes), id="t", max_context=32).forward.name == "fused"


def test_prompts_are_left_to_torch_and_what_is_many_rows_goes_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rows = target("llama", torch.float32), []
    run = model.forward.steps.run  # type: ignore[attr-defined]
    monkeypatch.setattr(
        model.forward.steps,  # type: ignore[attr-defined]
        "run",
        lambda ids, *rest: (rows.append(len(ids)), run(ids, *rest))[1],
    )
    with torch.inference_mode():
        model.begin(())
        model.prefill(ids(3))
        for count in (1, MOST_ROWS, MOST_ROWS + 1, 2):
            model.extend(ids(count))
    assert rows == [1, MOST_ROWS, MOST_ROWS, 1, 2]
