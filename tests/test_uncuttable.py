"""Targets whose cache cannot be cut back are refused by name, with the reason; the others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from draftboard.measure import loading
from draftboard.measure.rollback import check_rewind, refuse_uncuttable
from draftboard.measure.target import TargetModel
from loaded import load, refused, saved
from tiny import SIZES, tiny_model, tiny_target

HYBRID = Path(__file__).parent / "data/golden/targets/qwen3_5_tiny"


def test_a_hybrid_target_is_refused_by_name_before_its_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_model", lambda *args: pytest.fail("the weights were read"))
    refused(
        lambda: load(HYBRID), "qwen3_5_text", "linear_attention", "cannot be rolled back", "dense attention"
    )


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "linear_attention"),
        ("jamba", "linear_attention"),
        ("recurrent_gemma", "linear_attention"),
        ("falcon_h1", "hybrid"),
        ("qwen3_next", "linear_attention"),
        ("minimax", "linear_attention"),
        ("llama4_text", "chunked_attention"),
    ],
)
def test_states_that_cannot_be_rolled_back_are_refused_by_name(family: str, reason: str) -> None:
    config = AutoConfig.for_model(family)
    refused(lambda: refuse_uncuttable(config, 64), family, reason, "cannot be rolled back")


def test_a_recurrent_model_that_its_configuration_does_not_betray_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "rwkv", context_length=64, attention_hidden_size=32)
    refused(lambda: load(tmp_path), "rwkv", "keeps a recurrent state")


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_a_dense_model_without_the_usual_attention_kernel_loads(tmp_path: Path, family: str) -> None:
    assert load(saved(tmp_path, family, sliding_window=256)).forward.name == "module"


def test_the_language_part_of_a_composite_model_is_what_is_judged(tmp_path: Path) -> None:
    AutoConfig.for_model("qwen3_5").save_pretrained(tmp_path)
    refused(lambda: load(tmp_path), "qwen3_5_text", "linear_attention")
    AutoConfig.for_model("gemma3").save_pretrained(tmp_path)
    refused(lambda: load(tmp_path, max_context=5000), "gemma3_text", "sliding window of 4096")


def test_the_language_part_of_a_composite_model_is_what_runs(tmp_path: Path) -> None:
    eye = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model(
        "gemma3", text_config=SIZES, vision_config={**eye, "image_size": 32, "patch_size": 16}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    said = load(tmp_path, max_context=64).reference()
    assert (said.layers, said.hidden_size, said.vocab_size, said.forward) == (3, 32, 96, "module")


@pytest.mark.parametrize(
    ("family", "changes", "slides"),
    [
        ("mistral", {"sliding_window": 32}, True),
        ("phi3", {"sliding_window": 32, "pad_token_id": 0}, True),
        ("gemma2", {"sliding_window": 32}, True),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, True),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}, False),
        ("mistral", {"sliding_window": None}, False),
        ("llama", {}, False),
    ],
)
def test_a_window_narrower_than_the_context_is_refused_with_the_way_out(
    family: str, changes: dict[str, Any], slides: bool
) -> None:
    config = AutoConfig.for_model(family, **changes)
    refuse_uncuttable(config, 32)
    if slides:
        refused(lambda: refuse_uncuttable(config, 33), family, "sliding window of 32", "may need 33")
    else:
        refuse_uncuttable(config, 33)


def test_a_windowed_model_loads_within_its_window(tmp_path: Path) -> None:
    saved(tmp_path, "mistral", sliding_window=32)
    refused(lambda: load(tmp_path), "mistral", "sliding window of 32")
    assert load(tmp_path, max_context=32).max_context == 32


class IgnoresCuts(TargetModel):
    def truncate(self, length: int) -> None:
        pass


class CutsOneTooFew(TargetModel):
    def truncate(self, length: int) -> None:
        super().truncate(min(length + 1, self.length))


@pytest.mark.parametrize("broken", [IgnoresCuts, CutsOneTooFew])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_a_cache_whose_cut_leaves_a_trace_is_caught(
    broken: type[TargetModel], family: str, spread: float
) -> None:
    model = tiny_model(family, initializer_range=spread)
    check_rewind(TargetModel(model, id="sound", max_context=64))
    faulty = broken(model, id="broken", max_context=64)
    refused(lambda: check_rewind(faulty), family, "after a roll-back its logits differ by")


def test_a_model_that_ignores_the_cache_it_is_given_is_caught() -> None:
    model = tiny_model("gpt_neox")
    inner = model.gpt_neox.forward
    model.gpt_neox.forward = lambda input_ids, **options: inner(input_ids)
    target = TargetModel(model, id="forgetful", max_context=64)
    refused(lambda: check_rewind(target), "gpt_neox", "does not keep its past in the cache it is given")


def test_the_check_of_the_rewind_leaves_an_empty_cache() -> None:
    target = tiny_target()
    check_rewind(target)
    assert target.length == 0
