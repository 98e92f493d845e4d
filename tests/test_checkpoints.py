"""What the loader recognises, and what of a configuration it refuses to guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_files import BLOCK_DRAFTERS, DEEPSPEC, GATED, RNN, SPECULATORS, ZLAB, changed, refused
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints import layouts
from draftboard_drafters.checkpoints.layouts import deepspec_dspark
from golden import case

FACTS: dict[str, dict[str, Any]] = {
    ZLAB: {"method": "dflash", "layout": "z-lab", "taps": (1, 4, 7), "k": 7, "num_target_layers": 8},
    "zlab_dflash_b4": {"method": "dflash", "layout": "z-lab", "taps": (2, 3, 5, 7), "k": 3},
    "deepspec_dflash": {"method": "dflash", "layout": "DeepSpec", "taps": (1, 4, 7), "k": 7},
    DEEPSPEC: {"method": "dspark", "layout": "DeepSpec", "taps": (1, 4, 7), "k": 7},
    GATED: {"method": "dspark", "layout": "DeepSpec", "taps": (0, 3, 6), "k": 5},
    RNN: {"method": "dspark", "layout": "DeepSpec", "k": 6},
    SPECULATORS: {
        "method": "dflash",
        "layout": "speculators",
        "taps": (1, 4, 6),
        "k": 5,
        "draft_vocab_size": 160,
        "verifier": "targets/qwen3_tiny",
    },
}
BLOCKS: dict[str, dict[str, Any]] = {
    ZLAB: {"block_size": 8, "mask_id": 255, "anchor_predicts": False, "markov": None},
    "zlab_dflash_b4": {"block_size": 4, "mask_id": 254, "anchor_predicts": False},
    "deepspec_dflash": {"block_size": 7, "mask_id": 251, "anchor_predicts": True, "confidence": None},
    DEEPSPEC: {"markov": "vanilla", "markov_rank": 16, "confidence": "hidden and previous token"},
    GATED: {"markov": "gated", "confidence": "hidden and previous token"},
    RNN: {"markov": "rnn", "confidence": "hidden"},
    SPECULATORS: {"block_size": 6, "mask_id": 252, "anchor_predicts": False},
}


@pytest.mark.parametrize("name", BLOCK_DRAFTERS)
def test_golden_checkpoints_are_recognised(name: str) -> None:
    found = checkpoints.load(case(name).drafter)
    assert {key: getattr(found, key) for key in FACTS[name]} == FACTS[name]
    assert {key: getattr(found.parallel, key) for key in BLOCKS[name]} == BLOCKS[name]
    assert found.tensors.keys() | found.shared.keys() == found.roles.keys()
    assert found.origin == "published"


def test_the_description_is_one_line() -> None:
    assert checkpoints.load(case(ZLAB).drafter).describe() == (
        "dflash in z-lab layout, K 7 (block 8, anchor slot is not read, mask 255), 3 layers of width 64"
        " (4 heads, 2 KV heads of 16), taps 1 4 7, rope default 10000, vocabulary 256 of 256,"
        " embedding and head from the target, 0.1 M parameters"
    )
    assert "own embedding and head" in checkpoints.load(case(SPECULATORS).drafter).describe()
    assert (
        "rnn Markov head of rank 16, confidence from hidden" in checkpoints.load(case(RNN).drafter).describe()
    )


Change = Callable[[dict[str, Any]], Any]


def nested_block(config: dict[str, Any]) -> None:
    config["dflash_config"]["block_size"] = config.pop("block_size")


def flat_mask(config: dict[str, Any]) -> None:
    config["mask_token_id"] = config["dflash_config"].pop("mask_token_id")


def new_rope(config: dict[str, Any]) -> None:
    del config["rope_scaling"]
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}


def same_rope_twice(config: dict[str, Any]) -> None:
    config["rope_parameters"] = {"rope_theta": config["rope_theta"], "rope_type": "default"}


def tied(config: dict[str, Any]) -> None:
    config["tie_word_embeddings"] = True


@pytest.mark.parametrize("change", [nested_block, flat_mask, new_rope, same_rope_twice, tied])
def test_the_same_said_elsewhere_is_the_same(change: Change, tmp_path: Path) -> None:
    found, plain = checkpoints.load(changed(tmp_path, ZLAB, change)), checkpoints.load(case(ZLAB).drafter)
    assert dataclasses.replace(found, path=plain.path) == plain


def test_a_tie_flag_forces_no_shape(tmp_path: Path) -> None:
    """A reduced head stays reduced although the configuration claims that it is the embedding."""

    def tie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["transformer_layer_config"]["tie_word_embeddings"] = True

    assert checkpoints.load(changed(tmp_path, SPECULATORS, tie)).tensors["lm_head.weight"].shape == (160, 64)


@pytest.mark.parametrize("how", ["old", "new"])
def test_scaled_rotary_embeddings_are_read_from_either_place(how: str, tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

    def old(config: dict[str, Any]) -> None:
        config["rope_scaling"] = scaling

    def new(config: dict[str, Any]) -> None:
        del config["rope_scaling"]
        config["rope_parameters"] = {**scaling, "rope_theta": config.pop("rope_theta")}

    found = checkpoints.load(changed(tmp_path, ZLAB, old if how == "old" else new))
    assert found.rope.parameters == {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128,
    }  # fmt: skip


CONFIG_FAULTS: dict[str, tuple[str, Change, str]] = {
    "taps missing": (
        ZLAB,
        lambda c: c["dflash_config"].pop("target_layer_ids"),
        r"no 'target_layer_ids', which decides the result and is never guessed",
    ),
    "taps of speculators missing": (
        SPECULATORS,
        lambda c: c.update(aux_hidden_state_layer_ids=None),
        r"no 'aux_hidden_state_layer_ids'",
    ),
    "taps are words": (
        ZLAB,
        lambda c: c["dflash_config"].update(target_layer_ids=["a"]),
        r"expected a list of whole numbers",
    ),
    "last block tapped": (
        ZLAB,
        lambda c: c["dflash_config"].update(target_layer_ids=[0, 3, 7]),
        r"target_layer_ids = \[0, 3, 7\]; expected ids from -1 to 6, below the last block",
    ),
    "block size missing": (ZLAB, lambda c: c.pop("block_size"), r"no 'block_size'"),
    "block size twice": (
        ZLAB,
        lambda c: c["dflash_config"].update(block_size=16),
        r"says block_size is 8 at its top level and 16 in dflash_config",
    ),
    "mask missing": (ZLAB, lambda c: c["dflash_config"].pop("mask_token_id"), r"no 'mask_token_id'"),
    "rope missing": (ZLAB, lambda c: c.pop("rope_theta"), r"no 'rope_theta'"),
    "rope twice": (
        ZLAB,
        lambda c: c.update(rope_parameters={"rope_theta": 5.0}),
        r"rope_theta = 5.0; expected one value; it is 10000.0 elsewhere",
    ),
    "rope per layer type": (
        ZLAB,
        lambda c: c.update(rope_parameters={"full_attention": {"rope_theta": 1.0}}),
        r"cannot be run here: its rotary embedding differs between layer types",
    ),
    "window missing": (
        ZLAB,
        lambda c: c.update(layer_types=["sliding_attention"] * 3),
        r"no 'sliding_window'",
    ),
    "unknown layer type": (
        ZLAB,
        lambda c: c.update(layer_types=["linear_attention"] * 3),
        r"expected 3 times full_attention or sliding_attention",
    ),
    "too few layer types": (ZLAB, lambda c: c.update(layer_types=["full_attention"]), r"expected 3 times"),
    "another activation": (ZLAB, lambda c: c.update(hidden_act="gelu"), r"its MLP uses gelu"),
    "a number as text": (ZLAB, lambda c: c.update(block_size="8"), r"block_size = '8'; expected int"),
    "successor": (
        ZLAB,
        lambda c: c.update(architectures=["DFlash2DraftModel"]),
        r"recognised as DFlash 2, which cannot be run here: it has other tensors",
    ),
    "DSpark of SpecForge": (
        ZLAB,
        lambda c: c.update(architectures=["DSparkDraftModel"]),
        r"recognised as DSpark in SpecForge layout, which cannot be run",
    ),
    "projector": (
        ZLAB,
        lambda c: c["dflash_config"].update(projector_type="domino"),
        r"recognised as DFlash with a domino projector",
    ),
    "projector of speculators": (
        SPECULATORS,
        lambda c: c.update(projector_type="domino"),
        r"DFlash with a domino projector",
    ),
    "scaled logits": (
        ZLAB,
        lambda c: c.update(final_logit_softcapping=30.0),
        r"final_logit_softcapping is 30.0, which is not implemented",
    ),
    "shifted labels": (
        SPECULATORS,
        lambda c: (c.pop("sample_from_anchor"), c.update(shift_label=True)),
        r"shift_label moves its labels",
    ),
    "Gemma": (
        DEEPSPEC,
        lambda c: c.update(architectures=["Gemma4DSparkModel"]),
        r"recognised as DSpark for Gemma 4 .* its layers are Gemma's",
    ),
    "sliding DeepSpec": (
        DEEPSPEC,
        lambda c: c.update(layer_types=["sliding_attention", "full_attention"]),
        r"it has sliding layers",
    ),
    "unknown Markov head": (
        DEEPSPEC,
        lambda c: c.update(markov_head_type="gatd"),
        r"markov_head_type 'gatd' not found .* did you mean 'gated'",
    ),
    "confidence without Markov": (
        "deepspec_dflash",
        lambda c: c.update(enable_confidence_head=True, confidence_head_with_markov=False),
        r"it has a confidence head and no Markov head",
    ),
    "nobody's": (
        ZLAB,
        lambda c: c.update(architectures=["LlamaForCausalLM"]),
        r"no known layout; .*LlamaForCausalLM.*known: .*z-lab \(dflash\)",
    ),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_configuration_that_decides_nothing_is_refused(fault: str, tmp_path: Path) -> None:
    name, change, message = CONFIG_FAULTS[fault]
    refused(changed(tmp_path, name, change), message)


def test_a_layout_is_added_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(str(deepspec_dspark.__file__)).read_text()
    (tmp_path / "another.py").write_text(text)
    monkeypatch.setattr(layouts, "__path__", [*layouts.__path__, str(tmp_path)])
    with pytest.raises(RuntimeError, match="the layouts DeepSpec and DeepSpec both recognise it"):
        checkpoints.load(case(DEEPSPEC).drafter)
