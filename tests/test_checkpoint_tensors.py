"""Every tensor of a checkpoint is accounted for, and nothing that came with it is run."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checkpoint_files import (
    BLOCK_DRAFTERS,
    DEEPSPEC,
    SPECULATORS,
    ZLAB,
    Tensors,
    changed,
    read,
    refused,
    write,
)
from draftboard.drafter import UserError
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints import loader
from draftboard_drafters.checkpoints.config import Config
from golden import case


@pytest.mark.parametrize("name", BLOCK_DRAFTERS)
def test_every_tensor_is_needed(name: str) -> None:
    """Without any one tensor the loader stops, unless a rule says where that one comes from."""
    config, tensors = read(name)
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    excused = {"embed_tokens.weight", "t2d"} if name == SPECULATORS else set()
    for key in shapes.keys() - excused:
        rest = {other: shape for other, shape in shapes.items() if other != key}
        with pytest.raises(UserError, match=f"missing '{key}', which nothing else provides"):
            loader.check_shapes(loader.recognise(Config(config, name), rest), rest, name)


def renamed(old: str, new: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def absolute(tensors: Tensors) -> None:
    tensors["d2t"] += torch.arange(160)


def absolute_alone(tensors: Tensors) -> None:
    absolute(tensors)
    del tensors["t2d"]


def other_mask(tensors: Tensors) -> None:
    tensors["t2d"] = tensors["t2d"].roll(1)


def without_map(tensors: Tensors) -> None:
    del tensors["d2t"], tensors["t2d"]


TENSOR_FAULTS: dict[str, tuple[str, Callable[[Tensors], Any], str]] = {
    "map renamed": (
        SPECULATORS,
        renamed("d2t", "draft_to_target"),
        r"missing 'd2t'.*; unexpected 'draft_to_target', which would go unused",
    ),
    "no map": (SPECULATORS, without_map, r"missing 'd2t'"),
    "map holds target ids": (
        SPECULATORS,
        absolute,
        r"d2t .* read as offsets .* hold the target ids themselves",
    ),
    "map holds target ids, no mask": (SPECULATORS, absolute_alone, r"d2t does not rise within 0 to 255"),
    "map and mask differ": (SPECULATORS, other_mask, r"d2t names ids that t2d does not"),
    "reduced head gone": (SPECULATORS, lambda t: t.pop("lm_head.weight"), r"missing 'lm_head.weight'"),
    "head gone": (DEEPSPEC, lambda t: t.pop("lm_head.weight"), r"missing 'lm_head.weight'"),
    "extra": (ZLAB, lambda t: t.update(extra=torch.zeros(1)), r"unexpected 'extra', which would go unused"),
    "layer too many": (
        ZLAB,
        lambda t: t.update(
            {k.replace("layers.0", "layers.3"): v.clone() for k, v in [*t.items()] if "layers.0" in k}
        ),
        r"unexpected 'layers.3.input_layernorm.weight', .* and 7 more",
    ),
    "norm renamed": (ZLAB, renamed("hidden_norm.weight", "hnorm.weight"), r"missing 'hidden_norm.weight'"),
    "queries too narrow": (
        ZLAB,
        lambda t: t.update({"layers.1.self_attn.q_proj.weight": torch.zeros(32, 64).bfloat16()}),
        r"'layers.1.self_attn.q_proj.weight' \(attention queries\) got \[32, 64\], expected \[64, 64\]",
    ),
    "one tap too few": (
        ZLAB,
        lambda t: t.update({"fc.weight": torch.zeros(64, 128).bfloat16()}),
        r"'fc.weight' \(fuses the taps into the context\) got \[64, 128\], expected \[64, 192\]",
    ),
    "Markov rank differs": (
        DEEPSPEC,
        lambda t: t.update({"markov_head.markov_w2.weight": torch.zeros(256, 8).bfloat16()}),
        r"got \[256, 8\], expected \[256, 16\]",
    ),
    "quantised": (
        ZLAB,
        lambda t: t.update({"fc.weight": torch.zeros(64, 192, dtype=torch.int8)}),
        r"'fc.weight' got int8, expected float32 or bfloat16 or float16; quantised",
    ),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_tensors_other_than_the_layouts_are_refused(fault: str, tmp_path: Path) -> None:
    name, change, message = TENSOR_FAULTS[fault]
    refused(changed(tmp_path, name, tensors=change), message)


def test_a_pickle_of_tensors_is_read_like_safetensors(tmp_path: Path) -> None:
    config, tensors = read(ZLAB)
    folder = write(tmp_path, config, {})
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert checkpoints.load(folder).sha256 == checkpoints.load(case(ZLAB).drafter).sha256


class Trap:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("kind", ["code", "text"])
def test_a_pickle_of_anything_else_is_refused_unrun(kind: str, tmp_path: Path) -> None:
    config, _ = read(ZLAB)
    folder = write(tmp_path, config, {})
    (tmp_path / "model.safetensors").unlink()
    if kind == "code":
        (tmp_path / "pytorch_model.bin").write_bytes(
            pickle.dumps({"fc.weight": Trap(tmp_path / "sprung")}, protocol=2)
        )
        refused(folder, "is not a plain file of tensors")
    else:
        torch.save({"fc.weight": "text"}, tmp_path / "pytorch_model.bin")
        refused(folder, "does not hold named tensors")
    assert not (tmp_path / "sprung").exists()


def test_tensors_may_be_spread_over_files_but_not_twice(tmp_path: Path) -> None:
    config, tensors = read(ZLAB)
    first = {key: tensors.pop(key) for key in ("fc.weight", "norm.weight")}
    folder = write(tmp_path, config, tensors)
    save_file(first, tmp_path / "model-00002.safetensors")
    assert checkpoints.load(folder).sha256 == checkpoints.load(case(ZLAB).drafter).sha256
    save_file(first, tmp_path / "model-00003.safetensors")
    refused(folder, r"tensor 'fc.weight' is in model-00003.safetensors and in another file")


def test_what_is_no_checkpoint_says_why(tmp_path: Path) -> None:
    config, tensors = read(ZLAB)
    folder = Path(write(tmp_path / "a", config, tensors))
    (folder / "model.safetensors").write_bytes(b"no weights")
    refused(str(folder), "model.safetensors cannot be read")
    (folder / "model.safetensors").unlink()
    refused(str(folder), r"no \*.safetensors and no pytorch_model\*.bin")
    save_file({}, folder / "model.safetensors")
    (folder / "config.json").write_text("[]")
    refused(str(folder), "holds a list; expected an object")
    (folder / "config.json").write_text("{")
    refused(str(folder), "is no JSON")
    (folder / "config.json").unlink()
    refused(str(folder), "no config.json")
    refused("nobody/nothing", r"'nobody/nothing' is no folder here and cannot be fetched from the hub")


def test_another_methods_checkpoint_is_named() -> None:
    with pytest.raises(
        UserError, match=r"holds a dspark drafter in DeepSpec layout, not dflash; run it with"
    ):
        checkpoints.load_as("dflash", case(DEEPSPEC).drafter)


def test_a_copied_folder_loads_the_same(tmp_path: Path) -> None:
    """The hash is over the tensors, whatever files they come in and wherever those are."""
    shutil.copytree(case(ZLAB).drafter, tmp_path / "copy")
    found = checkpoints.load(str(tmp_path / "copy"))
    assert found.sha256 == checkpoints.load(case(ZLAB).drafter).sha256
    assert found.sha256 != checkpoints.load(case("zlab_dflash_b4").drafter).sha256
