"""EAGLE-3 and MTP checkpoints: what is read, what is refused by name, and export in the published layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from draftboard.drafter import FINAL_NORM, UserError
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints import Serial
from golden import FOLDER
from tiny_checkpoint import save_checkpoint

QWEN_TARGET = FOLDER / "targets" / "qwen3_5_tiny"
PLACES = {
    "safeailab_eagle3": FOLDER / "safeailab_eagle3" / "drafter",
    "specforge_eagle3": FOLDER / "specforge_eagle3" / "drafter",
    "speculators_eagle3": FOLDER / "speculators_eagle3" / "drafter",
    "deepspec_eagle3": FOLDER / "deepspec_eagle3" / "drafter",
    "speculators_mtp": FOLDER / "speculators_mtp_qwen3" / "drafter",
    "qwen_mtp": QWEN_TARGET,
}
Tensors = dict[str, Tensor]
Config = dict[str, Any]


def changed(name: str, folder: Path, change: Callable[[Config, Tensors], Any]) -> str:
    """A copy of a golden checkpoint after `change`."""
    config = json.loads((PLACES[name] / "config.json").read_text())
    tensors = load_file(PLACES[name] / "model.safetensors")
    change(config, tensors)
    return save_checkpoint(folder, config, tensors)


READ = {
    "safeailab_eagle3": ("SafeAILab", (), 7, Serial()),
    "specforge_eagle3": ("SpecForge", (1, 4, 6), 7, Serial(tap_norms=True)),
    "speculators_eagle3": (
        "speculators",
        (2, 4, 5),
        5,
        Serial(tap_norms=True, norm_before_residual=True, recycle_normed=True),
    ),
    "deepspec_eagle3": ("DeepSpec", (1, 2, 4, 5, 7), 7, Serial()),
    "speculators_mtp": ("speculators", (FINAL_NORM,), 3, Serial(recycle_normed=True)),
    "qwen_mtp": ("Qwen", (FINAL_NORM,), 1, Serial(recycle_normed=True)),
}


@pytest.mark.parametrize("name", PLACES)
def test_conventions_are_read(name: str) -> None:
    loaded = checkpoints.load(str(PLACES[name]))
    assert (loaded.layout, loaded.taps, loaded.k, loaded.serial) == READ[name]
    assert set(loaded.roles) >= set(loaded.tensors)


OWN = {"qwen_mtp": "mtp.layers.0.mlp.up_proj.weight"}
"""A tensor of the drafter's own, where the file has others too."""


def some_key(name: str, tensors: Tensors) -> str:
    return OWN.get(name, next(key for key in tensors if key.endswith("mlp.up_proj.weight")))


@pytest.mark.parametrize("name", PLACES)
def test_a_missing_tensor_is_refused(name: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path, lambda c, t: t.pop(some_key(name, t)))
    with pytest.raises(UserError, match=r"missing '.*mlp.up_proj.weight', which nothing else provides"):
        checkpoints.load(path)


@pytest.mark.parametrize("name", PLACES)
def test_a_tensor_too_many_is_refused(name: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path, lambda c, t: t.update({some_key(name, t) + "_2": torch.zeros(1)}))
    with pytest.raises(UserError, match=r"unexpected '.*up_proj.weight_2', which would go unused"):
        checkpoints.load(path)


@pytest.mark.parametrize("name", PLACES)
def test_a_renamed_tensor_is_refused(name: str, tmp_path: Path) -> None:
    def rename(config: Config, tensors: Tensors) -> None:
        key = some_key(name, tensors)
        tensors[key.replace("up_proj", "upward_proj")] = tensors.pop(key)

    with pytest.raises(UserError, match=r"missing '.*up_proj.*unexpected '.*upward_proj"):
        checkpoints.load(changed(name, tmp_path, rename))


@pytest.mark.parametrize("name", PLACES)
def test_a_misshapen_tensor_is_refused(name: str, tmp_path: Path) -> None:
    def cut(config: Config, tensors: Tensors) -> None:
        tensors[some_key(name, tensors)] = torch.zeros(100, 64)

    with pytest.raises(UserError, match=r"up_proj.*got \[100, 64\], expected \[128, 64\]"):
        checkpoints.load(changed(name, tmp_path, cut))


def without(*keys: str) -> Callable[[Config, Tensors], Any]:
    return lambda config, tensors: [tensors.pop(key) for key in keys]


def setting(**fields: Any) -> Callable[[Config, Tensors], Any]:
    return lambda config, tensors: config.update(fields)


def expert(config: Config, tensors: Tensors) -> None:
    tensors["mtp.layers.0.mlp.experts.0.up_proj.weight"] = torch.zeros(1)


def d2t_as_ids(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


NO_STEPS = {"proposal_methods": [{"proposal_type": "greedy"}]}
REFUSED: dict[str, tuple[str, Callable[[Config, Tensors], Any], str]] = {
    "a lost vocabulary map": ("safeailab_eagle3", without("d2t", "t2d"), "missing 'd2t'"),
    "a map of target ids": ("specforge_eagle3", d2t_as_ids, "d2t .*read as offsets"),
    "a lost head": ("speculators_eagle3", without("lm_head.weight"), "missing 'lm_head.weight'"),
    "another number of taps": (
        "specforge_eagle3",
        setting(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 3, 5]}),
        r"missing 'fc_norm.3.weight'",
    ),
    "one state instead of taps": (
        "specforge_eagle3",
        setting(eagle_config={"use_aux_hidden_state": False}),
        "use_aux_hidden_state is false",
    ),
    "two midlayers": ("safeailab_eagle3", setting(num_hidden_layers=2), "2 layers, and the layout defines"),
    "two DeepSpec layers": ("deepspec_eagle3", setting(draft_num_hidden_layers=2), "2 layers"),
    "Gemma's layers": ("deepspec_eagle3", setting(architectures=["Gemma4Eagle3Model"]), "Gemma 4"),
    "taps left out by DeepSpec": ("deepspec_eagle3", setting(target_layer_ids=None), "'target_layer_ids'"),
    "the last block tapped": ("deepspec_eagle3", setting(target_layer_ids=[0, 1, 3, 4, 7]), "below the last"),
    "no drafts stated": ("speculators_mtp", setting(speculators_config=NO_STEPS), "'speculative_tokens'"),
    "two modules": ("speculators_mtp", setting(num_nextn_predict_layers=2), "2 modules, and only one"),
    "experts": ("qwen_mtp", expert, "Qwen layout.*mixture of experts"),
    "two modules inside a target": ("qwen_mtp", setting(mtp_num_hidden_layers=2), "2 modules"),
    "an unknown layer": (
        "qwen_mtp",
        setting(model_type="qwen9"),
        "'qwen9' are not implemented.*qwen3_5_text",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_by_name(what: str, tmp_path: Path) -> None:
    name, change, message = REFUSED[what]
    with pytest.raises(UserError, match=message):
        checkpoints.load(changed(name, tmp_path, change))


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    def widen(config: Config, tensors: Tensors) -> None:
        config["draft_vocab_size"] = 256
        tensors["lm_head.weight"] = torch.zeros(256, 64, dtype=torch.bfloat16)
        tensors["d2t"] = torch.zeros(256, dtype=torch.int64)

    loaded = checkpoints.load(changed("safeailab_eagle3", tmp_path, widen))
    assert "d2t" not in loaded.tensors and loaded.draft_vocab_size == 256


def test_norm_output_means_the_head_in_one_layout_and_recycling_in_the_other(tmp_path: Path) -> None:
    off = checkpoints.load(changed("specforge_eagle3", tmp_path / "a", setting(norm_output=False)))
    on = checkpoints.load(changed("specforge_eagle3", tmp_path / "b", setting(norm_output=True)))
    other = checkpoints.load(changed("speculators_eagle3", tmp_path / "c", setting(norm_output=False)))
    assert off.serial == Serial(tap_norms=True, norm_before_head=False)
    assert on.serial == Serial(tap_norms=True) and "norm_output is true" in on.warnings[0]
    assert other.serial == Serial(tap_norms=True, norm_before_residual=True)


EXPORTS = {
    "safeailab_eagle3": "SpecForge",
    "specforge_eagle3": "SpecForge",
    "speculators_eagle3": "speculators",
    "deepspec_eagle3": "DeepSpec",
    "speculators_mtp": "speculators",
    "qwen_mtp": "speculators",
}


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_loads_bit_equal(name: str, tmp_path: Path) -> None:
    first = checkpoints.load(str(PLACES[name]))
    checkpoints.export(first, tmp_path, EXPORTS[name])
    again = checkpoints.load(str(tmp_path))
    assert again.sha256 == first.sha256
    assert again.tensors.keys() == first.tensors.keys()
    assert all(torch.equal(again.tensors[key], tensor) for key, tensor in first.tensors.items())
    conventions = ("method", "taps", "k", "geometry", "rope", "draft_vocab_size", "serial")
    assert all(getattr(again, field) == getattr(first, field) for field in conventions)


def test_an_export_is_found_where_engines_look(tmp_path: Path) -> None:
    checkpoints.export(checkpoints.load(str(PLACES["specforge_eagle3"])), tmp_path, "SpecForge")
    stored = load_file(PLACES["specforge_eagle3"] / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors").keys() == stored.keys()


@pytest.mark.parametrize(
    ("name", "layout", "message"),
    [
        ("speculators_eagle3", "SpecForge", "the layout cannot say"),
        ("qwen_mtp", "Qwen", "among its target's tensors.*export to speculators"),
        ("speculators_mtp", "SpecForge", "layout 'SpecForge' not found"),
    ],
)
def test_a_layout_that_cannot_hold_it_is_refused(
    name: str, layout: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        checkpoints.export(checkpoints.load(str(PLACES[name])), tmp_path, layout)
    assert not (tmp_path / "model.safetensors").exists()
