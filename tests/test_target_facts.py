"""What a target says of itself: stop ids, the record's facts, which forward it takes, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.measure import fused
from draftboard.measure.target import TargetModel
from tiny import tiny_model


def test_a_quantised_model_keeps_its_own_forward() -> None:
    config = tiny_model("llama").config
    assert fused.fits(config)
    config.quantization_config = {"quant_method": "fp8"}
    assert not fused.fits(config)


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [(7, None, {7}), (7, 9, {9}), ([7, 8], None, {7, 8}), (7, [9, 10], {9, 10}), (None, None, set())],
)
def test_stop_ids_are_the_models_own(config_eos: Any, generation_eos: Any, expected: set[int]) -> None:
    model = tiny_model("llama", eos_token_id=config_eos)
    model.generation_config.eos_token_id = generation_eos
    assert TargetModel(model, id="tiny", max_context=8).stop_ids == expected
    assert TargetModel(model, id="tiny", max_context=8, stop_ids=frozenset([1])).stop_ids == {1}


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("forward", ["fused", "module"])
def test_a_record_says_what_the_target_is(forward: str) -> None:
    model = tiny_model(
        "llama",
        hidden_size=72,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=8,
        tie_word_embeddings=True,
    )
    said = TargetModel(
        model, id="tiny", max_context=128, revision="main", fused=forward == "fused"
    ).reference()
    assert (said.id, said.revision, said.forward, said.max_context) == ("tiny", "main", forward, 128)
    assert (said.layers, said.hidden_size, said.query_heads, said.kv_heads, said.head_dim) == (3, 72, 9, 3, 8)
    assert said.vocab_size == 96
    # Tied weights are read once: embedding, 3 blocks of q, k, v, o, gate, up, down and two norms, last norm.
    block = 72 * 72 + 2 * 72 * 24 + 72 * 72 + 3 * 72 * 64 + 2 * 72
    assert said.weight_bytes == 4 * (96 * 72 + 3 * block + 72)


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("tied", [True, False])
def test_a_token_reads_one_row_of_an_embedding_of_its_own(tied: bool) -> None:
    model = tiny_model("llama", tie_word_embeddings=tied)
    table = model.get_input_embeddings().weight
    target = TargetModel(model, id="tiny", max_context=8)
    spared = 0 if tied else 4 * table.numel()
    assert target.token_bytes == target.weight_bytes - spared


@pytest.mark.usefixtures("torch_only")
def test_what_a_token_reads_of_a_mixture_of_experts_is_not_known() -> None:
    model = tiny_model("llama")
    model.config.num_local_experts = 4
    assert TargetModel(model, id="tiny", max_context=8).token_bytes is None


def test_a_record_counts_query_heads_where_none_are_shared() -> None:
    model = tiny_model("gpt_neox")
    model.config.num_key_value_heads = model.config.head_dim = None
    said = TargetModel(model, id="tiny", max_context=8).reference()
    assert (said.query_heads, said.kv_heads, said.head_dim) == (4, 4, 8)
    assert said.architecture == "gpt_neox"


def test_a_model_without_a_known_shape_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"MptForCausalLM has no final norm under a known name"):
        TargetModel(tiny_model("mpt"), id="tiny", max_context=8)
    model = tiny_model("gpt_neox")
    model.config.num_hidden_layers = 5
    with pytest.raises(UserError, match=r"GPTNeoXForCausalLM has no list of 5 decoder layers"):
        TargetModel(model, id="tiny", max_context=8)
