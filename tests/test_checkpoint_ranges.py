"""What no drafter can have is refused in one line that names it: sizes, ids, ropes, files, values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_files import BLOCK_DRAFTERS, DEEPSPEC, SPECULATORS, ZLAB, changed, read, refused, write
from draftboard_drafters import checkpoints

Change = Callable[[dict[str, Any]], Any]
EAGLE, SPECFORGE, SERIAL = "deepspec_eagle3", "specforge_eagle3", "speculators_eagle3"


def setting(**values: Any) -> Change:
    """Sets fields at the top level."""
    return lambda config: config.update(values)


def nested(section: str, **values: Any) -> Change:
    """Sets fields of a section."""
    return lambda config: config[section].update(values)


def rope(**values: Any) -> Change:
    """States the rotary embedding of a z-lab drafter anew."""

    def change(config: dict[str, Any]) -> None:
        del config["rope_scaling"], config["rope_theta"]
        config["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default", **values}

    return change


def proposals(methods: Any) -> Change:
    return nested("speculators_config", proposal_methods=methods)


FROM_1, FROM_0, FINITE = "expected a whole number from 1", "a whole number from 0", "a finite number above 0"
FAULTS: dict[str, tuple[str, Change, str]] = {
    "no heads": (ZLAB, setting(num_attention_heads=0), f"num_attention_heads = 0; {FROM_1}"),
    "no width": (ZLAB, setting(hidden_size=0), f"hidden_size = 0; {FROM_1}"),
    "heads of no width": (ZLAB, setting(head_dim=-16), f"head_dim = -16; {FROM_1}"),
    "KV heads that share nothing": (ZLAB, setting(num_key_value_heads=3), "= 3; expected a divisor of the 4"),
    "no layers": (ZLAB, setting(num_hidden_layers=0, layer_types=[]), f"num_hidden_layers = 0; {FROM_1}"),
    "no block": (DEEPSPEC, setting(block_size=0), f"block_size = 0; {FROM_1}"),
    "less than no block": (DEEPSPEC, setting(block_size=-3), f"block_size = -3; {FROM_1}"),
    "a block that drafts nothing": (ZLAB, setting(block_size=1), "block_size = 1; .* whole number from 2"),
    "no block of speculators": (SPECULATORS, setting(block_size=1), "block_size = 1; .* number from 2"),
    "no mask": (DEEPSPEC, setting(mask_token_id=-1), f"mask_token_id = -1; expected {FROM_0}"),
    "no mask of z-lab": (ZLAB, nested("dflash_config", mask_token_id=-1), f"mask_token_id = -1; .*{FROM_0}"),
    "no mask of speculators": (SPECULATORS, setting(mask_token_id=-1), f"mask_token_id = -1; .*{FROM_0}"),
    "no window": (
        ZLAB,
        setting(layer_types=["sliding_attention"] * 3, sliding_window=0),
        f"sliding_window = 0; {FROM_1}",
    ),
    "less than no Markov rank": (DEEPSPEC, setting(markov_rank=-1), f"markov_rank = -1; .*{FROM_0}"),
    "no drafts": (EAGLE, setting(ttt_length=0), f"ttt_length = 0; {FROM_1}"),
    "no drafts of SpecForge": (SPECFORGE, setting(ttt_length=0), f"ttt_length = 0; {FROM_1}"),
    "no drafts of speculators": (
        SERIAL,
        proposals([{"speculative_tokens": 0}]),
        f"speculative_tokens = 0; {FROM_1}",
    ),
    "taps too low": (EAGLE, setting(target_layer_ids=[-2, 1, 3, 4, 6]), "distinct whole numbers from -1"),
    "taps twice": (ZLAB, nested("dflash_config", target_layer_ids=[3, 3, 6]), "distinct whole numbers from"),
    "inputs too low": (SPECULATORS, setting(aux_hidden_state_layer_ids=[-1, 4, 6]), "distinct .* from 0"),
    "inputs twice": (SERIAL, setting(eagle_aux_hidden_state_layer_ids=[4, 4, 5]), "distinct .* from 0"),
    "no eps": (ZLAB, setting(rms_norm_eps=0), f"rms_norm_eps = 0.0; expected {FINITE}"),
    "eps is no number": (ZLAB, setting(rms_norm_eps=math.nan), f"rms_norm_eps = nan; expected {FINITE}"),
    "no positions": (ZLAB, setting(max_position_embeddings=0), f"max_position_embeddings = 0; {FROM_1}"),
    "rope base as text": (ZLAB, setting(rope_theta="10000"), "rope_theta = '10000'; expected float"),
    "rope base as list": (ZLAB, rope(rope_theta=[1e4]), r"rope_theta = \[10000.0\]; expected float"),
    "rope base below 0": (ZLAB, setting(rope_theta=-1), f"rope_theta = -1.0; expected {FINITE}"),
    "rope type as list": (ZLAB, rope(rope_type=["yarn"]), r"rope_type = \['yarn'\]; expected str"),
    "yarn without factor": (ZLAB, rope(rope_type="yarn"), "rotary embedding cannot be built: .*'factor'"),
    "yarn by nothing": (ZLAB, rope(rope_type="yarn", factor=0.0), "cannot be built: .* yields no angles"),
    "a growing rope": (ZLAB, rope(rope_type="dynamic", factor=2.0), "built: .*'dynamic' cannot be run"),
    "a rope wider than heads": (ZLAB, rope(partial_rotary_factor=2.0), "no angles for heads of 16"),
    "layer types in lists": (ZLAB, setting(layer_types=[["full_attention"]] * 3), "expected 3 times full"),
    "architectures in lists": (ZLAB, setting(architectures=[["x"]]), "expected a list of words"),
    "proposals as words": (SPECULATORS, proposals(["x"]), r"= \['x'\]; expected a list of objects"),
    "serial proposals as words": (SERIAL, proposals(["x"]), r"= \['x'\]; expected a list of objects"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_drafter_can_have_is_refused(fault: str, tmp_path: Path) -> None:
    name, change, message = FAULTS[fault]
    refused(changed(tmp_path, name, change), message)


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_weights_that_are_no_file_are_named(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, *read(ZLAB))
    (tmp_path / "model.safetensors").unlink()
    if kind == "folder":
        (tmp_path / "model.safetensors").mkdir()
    else:
        (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    refused(path, r"model.safetensors cannot be read: .*; fetch it again")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    path = changed(tmp_path, ZLAB, tensors=lambda tensors: tensors["norm.weight"].fill_(value))
    refused(path, r"tensor 'norm.weight' has 64 values of 64 that are not finite numbers; fetch")


@pytest.mark.parametrize("name", [*BLOCK_DRAFTERS, EAGLE, SPECFORGE, SERIAL])
def test_the_least_that_a_drafter_can_have_is_read(name: str, tmp_path: Path) -> None:
    """The bounds themselves are allowed: a lowest mask id, one position, the shortest block."""
    path = changed(tmp_path, name, _at_the_bounds)
    found = checkpoints.load(path)
    assert found.rope.max_position_embeddings == 1
    assert found.parallel is None or (found.parallel.mask_id, found.k) == (0, 1)


def _at_the_bounds(config: dict[str, Any]) -> None:
    for place in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in place.keys() & {"mask_token_id", "max_position_embeddings", "block_size"}:
            place[key] = {"mask_token_id": 0, "max_position_embeddings": 1}.get(key, _shortest(config))


def _shortest(config: dict[str, Any]) -> int:
    return 1 if "Qwen3DSparkModel" in config["architectures"] else 2
