"""Norms, rotary angles, attention and decoder layers against transformers' own modules and closed forms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from draftboard.drafter import UserError
from draftboard.measure import block_parts, linear
from draftboard.measure.attention import additive, attend
from draftboard.measure.compiled import kernels, kernels_missing
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters._layers import (
    Attention,
    DecoderLayer,
    Geometry,
    KVCache,
    RMSNorm,
    Rope,
    Rotary,
    Rows,
    Sight,
    Vocabulary,
    joined,
    rotate,
)
from tiny import SIZES, tiny_model, tiny_target

CPU = torch.device("cpu")
PLAIN = {"rope_type": "default", "rope_theta": 1000.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": PLAIN,
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1000.0,
    },
}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {"qk_norm": False}),
    "llama with biases": (
        {"family": "llama", "attention_bias": True},
        {"qk_norm": False, "attention_bias": True, "output_bias": True},
    ),
    "qwen2": ({}, {"qk_norm": False, "attention_bias": True}),
    "qwen3": ({}, {"qk_norm": True}),
    "qwen3_5_text": (
        {"layer_types": ["full_attention"], "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
        {"qk_norm": True, "zero_centred_norms": True, "output_gate": True},
    ),
}


def rotary(parameters: dict[str, Any], head_dim: int = 16, length: int = 40, limit: int = 256) -> Rotary:
    return Rotary(Rope(parameters, limit), head_dim, length, torch.float32, CPU)


def causal_layer(family: str) -> tuple[Any, DecoderLayer, KVCache, Rotary]:
    changes, switches = FAMILIES[family]
    options = {"rope_parameters": PLAIN, "num_hidden_layers": 1, **changes}
    model = tiny_model(options.pop("family", family), **options).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    geometry = Geometry(
        hidden_size=SIZES["hidden_size"],
        intermediate_size=SIZES["intermediate_size"],
        heads=SIZES["num_attention_heads"],
        kv_heads=SIZES["num_key_value_heads"],
        head_dim=SIZES["head_dim"],
        eps=model.config.rms_norm_eps,
        **switches,
    )
    layer = DecoderLayer(dict(model.layers[0].named_parameters()), geometry)
    cache = KVCache(1, geometry.kv_heads, geometry.head_dim, 16, torch.float32, CPU)
    angles = rotary({**model.config.rope_parameters}, geometry.head_dim, 16)
    return model, layer, cache, angles


@pytest.mark.parametrize("way", ["compiled", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_decoder_layer_is_transformers_layer(family: str, way: str, request: pytest.FixtureRequest) -> None:
    """In one go and in portions over the cache."""
    if way == "torch":
        request.getfixturevalue("torch_only")
    elif kernels() is None:
        pytest.skip(f"NOT RUN: {kernels_missing()}")
    model, layer, cache, angles = causal_layer(family)
    x, rows = torch.randn(9, SIZES["hidden_size"]), 9
    mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
    turned = model.rotary_emb(x[None], torch.arange(rows)[None])
    theirs = model.layers[0](x[None], attention_mask=mask, position_embeddings=turned)
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    for portions in ((9,), (1, 5, 3)):
        start, ours = 0, []
        for count in portions:
            place = slice(start, start + count)
            ours.append(layer(x[place], Rows(place, Sight(causal=True), angles), cache, 0))
            start += count
        torch.testing.assert_close(torch.cat(ours), theirs.view(rows, -1), atol=1e-5, rtol=1e-5)


def test_plain_angles_are_the_closed_form() -> None:
    """Dimension i of a half turns by position * theta^(-2i / head_dim)."""
    found = rotary(PLAIN, head_dim=8, length=4)
    for position in range(4):
        for i in range(8):
            angle = torch.tensor(position * 1000.0 ** (-2 * (i % 4) / 8))
            assert found.cos[position, 0, i] == pytest.approx(float(angle.cos()), abs=1e-6)
            assert found.sin[position, 0, i].abs() == pytest.approx(float(angle.sin().abs()), abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_rotation_is_transformers_rotation(variant: str) -> None:
    x = torch.randn(40, 3, 16)
    found = rotate(x, rotary(VARIANTS[variant]).at(slice(0, 40)))
    config = tiny_model(
        "llama", hidden_size=48, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
        max_position_embeddings=256, rope_parameters=dict(VARIANTS[variant]),
    ).config  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(40)[None])
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    torch.testing.assert_close(found, expected[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "default"])
def test_every_variant_differs_from_the_plain_one(variant: str) -> None:
    x = torch.ones(40, 1, 16)
    place = slice(0, 40)
    plain = rotate(x, rotary(PLAIN).at(place))
    assert (rotate(x, rotary(VARIANTS[variant]).at(place)) - plain).abs().max() > 0.1


def test_a_partial_rotation_leaves_the_rest_alone() -> None:
    x = torch.randn(5, 2, 16)
    turned = rotate(x, rotary({**PLAIN, "partial_rotary_factor": 0.25}, length=5).at(slice(0, 5)))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    narrow = rotate(x[..., :4], rotary(PLAIN, head_dim=4, length=5).at(slice(0, 5)))
    torch.testing.assert_close(turned[..., :4], narrow)


def test_angles_reach_beyond_the_stated_length() -> None:
    short, long = rotary(PLAIN, length=200, limit=8), rotary(PLAIN, length=200, limit=4096)
    assert torch.equal(short.cos, long.cos)
    assert len(short.cos) == 200


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional"])
def test_a_variant_that_cannot_be_cached_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UserError, match=rf"rotary variant '{kind}' cannot be run.*can run: default, linear"):
        rotary({"rope_type": kind, "rope_theta": 1000.0, "factor": 2.0})


def test_a_zero_centred_norm_multiplies_by_one_plus_weight() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8) * 0.1
    expected = RMSNorm(1 + weight, 1e-6)(x)
    torch.testing.assert_close(RMSNorm(weight, 1e-6, zero_centred=True)(x), expected)


def test_a_zero_centred_norm_keeps_small_weights_in_bfloat16() -> None:
    """1 + 0.003 is 1 in bfloat16; over many rows the difference has to show."""
    x, weight = torch.randn(4096, 8).bfloat16(), torch.full((8,), 0.003).bfloat16()
    normed = RMSNorm(weight, 1e-6, zero_centred=True)(x)
    assert normed.dtype == torch.bfloat16
    scale = float(
        normed.float().square().mean().sqrt() / RMSNorm(torch.ones(8), 1e-6)(x.float()).square().mean().sqrt()
    )
    assert scale == pytest.approx(1.003, abs=5e-4)


SIGHTS: dict[str, tuple[Sight, list[str] | None]] = {
    "all": (Sight(), None),
    "causal": (Sight(causal=True), ["xxxx..", "xxxxx.", "xxxxxx"]),
    "window": (Sight(window=2), ["..xxx.", "...xxx", "....xx"]),
    "causal window": (Sight(causal=True, window=2), ["..xx..", "...xx.", "....xx"]),
    "window before the first row": (Sight(window=2, from_first_row=True), [".xxxxx", ".xxxxx", ".xxxxx"]),
    "the same, causal": (
        Sight(causal=True, window=2, from_first_row=True),
        [".xxx..", ".xxxx.", ".xxxxx"],
    ),
}


@pytest.mark.parametrize("name", SIGHTS)
def test_what_three_rows_after_three_positions_see(name: str) -> None:
    sight, expected = SIGHTS[name]
    mask = sight.mask(slice(3, 6), CPU)
    drawn = None if mask is None else ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]
    assert drawn == expected


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("sight", [Sight(), Sight(causal=True), Sight(window=9), Sight(window=4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_compiled_layer_is_the_layer_by_operators(
    sight: Sight, qk_norm: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a context, with an input wider than the states, in both dtypes; with windows that hide something,
    both go by operators."""
    if kernels() is None:
        pytest.skip(f"NOT RUN: {kernels_missing()}")
    geometry = Geometry(
        hidden_size=32, intermediate_size=48, heads=6, kv_heads=2, head_dim=16, eps=1e-5, qk_norm=qk_norm
    )
    sizes = {"q_proj": (96, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (32, 96)}
    parameters = {f"{name}.weight": torch.randn(size).to(dtype) / 8 for name, size in sizes.items()}
    parameters |= {f"{name}_norm.weight": (1 + torch.randn(16) / 5).to(dtype) for name in "qk"}
    table = Rotary(Rope(PLAIN, 64), 16, 24, dtype, CPU)
    x, found = torch.randn(8, 64).to(dtype), []
    for missing in (False, True):
        if missing:
            for module in (block_parts, linear):
                monkeypatch.setattr(module, "kernels", lambda: None)
        attention, cache = Attention(parameters, geometry), KVCache(1, 2, 16, 24, dtype, CPU)
        assert (attention.call is None) is missing
        attention(x[:5], Rows(slice(0, 5), Sight(causal=True), table), cache, 0)
        found.append((attention(x[5:], Rows(slice(5, 8), sight, table), cache, 0), cache.layers[0]))
    for one, other in zip(*found, strict=True):
        assert one.dtype is dtype
        close = {"atol": 1e-5, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.05, "rtol": 0.02}
        torch.testing.assert_close(one, other, **close)


def block_of(zero_centred: bool, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], Geometry]:
    """A decoder block's parameters, queries and keys normed."""
    sizes = {
        **{f"self_attn.{name}_proj": (size, 32) for name, size in (("q", 96), ("k", 32), ("v", 32))},
        "self_attn.o_proj": (32, 96),
        **{f"mlp.{name}_proj": (48, 32) for name in ("gate", "up")},
        "mlp.down_proj": (32, 48),
        **{f"self_attn.{name}_norm": (16,) for name in "qk"},
        **{f"{name}_layernorm": (32,) for name in ("input", "post_attention")},
    }
    geometry = Geometry(
        hidden_size=32,
        intermediate_size=48,
        heads=6,
        kv_heads=2,
        head_dim=16,
        eps=1e-5,
        qk_norm=True,
        zero_centred_norms=zero_centred,
    )
    return {f"{name}.weight": (torch.randn(size) / 4).to(dtype) for name, size in sizes.items()}, geometry


@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize("sight", [Sight(), Sight(causal=True), Sight(window=4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_compiled_block_is_the_block_by_operators(
    sight: Sight, zero_centred: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two in a cache, after a context, its input transposed in memory and left as it was."""
    if kernels() is None:
        pytest.skip(f"NOT RUN: {kernels_missing()}")
    parameters, geometry = block_of(zero_centred, dtype)
    table, found = Rotary(Rope(PLAIN, 64), 16, 24, dtype, CPU), []
    x = torch.randn(32, 8).to(dtype).T
    given = x.clone()
    for missing in (False, True):
        if missing:
            for module in (block_parts, linear):
                monkeypatch.setattr(module, "kernels", lambda: None)
        layer, cache = DecoderLayer(parameters, geometry), KVCache(2, 2, 16, 24, dtype, CPU)
        assert (layer.call is None) is missing
        layer(x[:5], Rows(slice(0, 5), Sight(causal=True), table), cache, 1)
        found.append((layer(x[5:], Rows(slice(5, 8), sight, table), cache, 1), cache.layers[1]))
        assert torch.equal(x, given) and not cache.layers[0].any()
    for one, other in zip(*found, strict=True):
        assert one.dtype is dtype
        close = {"atol": 1e-5, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.06, "rtol": 0.02}
        torch.testing.assert_close(one, other, **close)


@torch.inference_mode()
def test_a_block_goes_by_its_one_call_where_it_can_and_by_halves_where_not() -> None:
    if kernels() is None:
        pytest.skip(f"NOT RUN: {kernels_missing()}")
    layer = DecoderLayer(*block_of(False, torch.float32))
    table, cache = (
        Rotary(Rope(PLAIN, 64), 16, 64, torch.float32, CPU),
        KVCache(1, 2, 16, 64, torch.float32, CPU),
    )
    assert layer.call is not None
    with mock.patch.object(layer, "call", wraps=layer.call) as call:
        for rows, calls in ((32, 1), (33, 1), (1, 2)):
            layer(torch.randn(rows, 32), Rows(slice(0, rows), Sight(causal=True), table), cache, 0)
            assert call.call_count == calls
    wide, narrow = layer.input_norm.weight, torch.ones(16)
    assert block_parts.layer_call(layer.attention.call, layer.mlp.call, (wide, narrow)) is None
    assert block_parts.layer_call(layer.attention.call, None, (wide, wide)) is None


@pytest.mark.parametrize("added", [False, True], ids=["bool", "additive"])
def test_attention_is_softmax_over_what_is_seen(added: bool) -> None:
    query, keys, values = torch.randn(2, 4, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    mask = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]])
    wide = additive(mask, 2, torch.float32) if added else mask.repeat(2, 1)
    found = attend(query, keys, values, wide).view(2, 4, 8)
    for row in range(2):
        for head in range(4):
            scores = (keys[head // 2] @ query[row, head]) / 8**0.5
            weights = scores.masked_fill(~mask[row], -torch.inf).softmax(0)
            torch.testing.assert_close(found[row, head], weights @ values[head // 2])


def test_products_are_joined_with_the_biases_there_are() -> None:
    a, b, bias, x = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2), torch.randn(5, 4)
    found = joined({"a.weight": a, "b.weight": b, "b.bias": bias}, "a", "b")(x)
    torch.testing.assert_close(found, torch.cat([x @ a.T, x @ b.T + bias], dim=1))


def sampler(temperature: float) -> Sampler:
    return Sampler(Sampling(temperature), Randomness(0, CPU))


def vocabulary(target_ids: list[int] | None = None, tokens: range | None = None) -> Vocabulary:
    target: Any = tiny_target()
    if tokens is not None:
        target.tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in tokens})
    ids = None if target_ids is None else torch.tensor(target_ids)
    head = None if ids is None else torch.randn(len(ids), 32)
    return Vocabulary(target, None, head, ids)


def test_a_reduced_vocabulary_hands_over_target_ids_and_their_law() -> None:
    logits, ids = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 0.0]]), [5, 40, 90]
    tokens, law = vocabulary(ids).draw(sampler(1.0), logits)
    assert law is not None and law.shape == (2, 96) and law.dtype == torch.float32
    torch.testing.assert_close(law[:, ids], logits.softmax(-1))
    assert law.sum(-1).tolist() == pytest.approx([1.0, 1.0])
    assert set(tokens.tolist()) <= set(ids)
    certain, none = vocabulary(ids).draw(sampler(0.0), logits)
    assert (certain.tolist(), none) == ([40, 5], None)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_token_are_never_guessed(temperature: float) -> None:
    logits = torch.zeros(64, 96)
    logits[:, 50:] = 9.0
    tokens, law = vocabulary(tokens=range(50)).draw(sampler(temperature), logits)
    assert int(tokens.max()) < 50
    assert law is None or float(law[:, 50:].max()) == 0.0
    reduced, _ = vocabulary([3, 60], tokens=range(50)).draw(sampler(temperature), logits[:, 49:51])
    assert reduced.tolist() == [3] * 64


def test_an_own_head_is_used_and_not_the_targets() -> None:
    target = tiny_target()
    embedding, head = torch.randn(96, 32), torch.randn(96, 32)
    own, shared = Vocabulary(target, embedding, head, None), Vocabulary(target, None, None, None)
    x, ids = torch.randn(2, 32), torch.tensor([1, 7])
    torch.testing.assert_close(own.logits(x), x @ head.T)
    assert torch.equal(own.embed(ids), embedding[ids])
    assert torch.equal(shared.logits(x), target.head(x))
    assert torch.equal(shared.embed(ids), target.embed(ids))


def test_the_cache_can_be_cut_back() -> None:
    """What a layer wrote beyond the length is overwritten, and nothing reads it."""
    _, layer, cache, angles = causal_layer("llama")
    x = torch.randn(4, SIZES["hidden_size"])

    def last(states: Tensor) -> Tensor:
        place = slice(2, 4)
        return layer(states, Rows(place, Sight(causal=True), angles), cache, 0)

    layer(x[:2], Rows(slice(0, 2), Sight(causal=True), angles), cache, 0)
    first = last(x[2:])
    last(torch.randn(2, SIZES["hidden_size"]))
    assert torch.equal(last(x[2:]), first)
