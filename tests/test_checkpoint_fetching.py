"""What is fetched from the hub: a stand-in keeps the files, notes what is asked for, and has one commit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftboard.drafter import UserError
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints import files
from golden import FOLDER, case

COMMIT = "c0ffee"
TARGET = FOLDER / "targets" / "qwen3_5_tiny"
"""A target that carries an MTP module."""
UP = "mtp.layers.0.mlp.up_proj.weight"


class Hub:
    """`huggingface_hub` with one repository, whose main branch is at COMMIT."""

    def __init__(self, folder: Path) -> None:
        self.remote, self.local = folder / "remote", folder / "snapshots" / COMMIT
        self.fetched: list[str] = []
        self.remote.mkdir()
        self.local.mkdir(parents=True)

    def hf_hub_download(self, repo: str, file: str, *, revision: str | None) -> str:
        assert revision in {None, COMMIT} and (revision or file == "config.json")
        if not (self.remote / file).exists():
            raise EntryNotFoundError(f"no {file} in {repo}")
        self.fetched.append(file)
        return shutil.copy(self.remote / file, self.local / file)

    def snapshot_download(self, repo: str, *, revision: str | None, allow_patterns: Sequence[str]) -> str:
        for path in sorted(file for pattern in allow_patterns for file in self.remote.glob(pattern)):
            self.hf_hub_download(repo, path.name, revision=revision)
        return str(self.local)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path)
    monkeypatch.setattr(files, "hub", made)
    return made


def shard(hub: Hub, config: dict[str, Any], tensors: dict[str, Tensor], size: int = 8) -> dict[str, str]:
    """Stores a checkpoint in files of `size` tensors and an index; returns each key's file."""
    keys = sorted(tensors)
    parts = [keys[at : at + size] for at in range(0, len(keys), size)]
    where = {key: f"model-{number:05}.safetensors" for number, part in enumerate(parts) for key in part}
    for part in parts:
        save_file({key: tensors[key] for key in part}, hub.remote / where[part[0]])
    (hub.remote / "config.json").write_text(json.dumps(config))
    (hub.remote / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return where


def stored() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The target's configuration and tensors."""
    return json.loads((TARGET / "config.json").read_text()), load_file(TARGET / "model.safetensors")


def test_a_module_inside_a_target_costs_only_the_files_that_hold_it(hub: Hub) -> None:
    where = shard(hub, *stored())
    needed = {file for key, file in where.items() if key.startswith("mtp.")}
    assert 0 < len(needed) < len(set(where.values())) / 2
    loaded = checkpoints.load("some/target")
    assert hub.fetched == ["config.json", "model.safetensors.index.json", *sorted(needed)]
    assert (loaded.path, loaded.sha256) == ("some/target", checkpoints.load(str(TARGET)).sha256)


def test_a_module_that_cannot_be_run_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    config, tensors = stored()
    shard(hub, config, {**tensors, "mtp.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(1)})
    with pytest.raises(UserError, match="mixture of experts"):
        checkpoints.load("some/target")
    assert hub.fetched == ["config.json", "model.safetensors.index.json"]


def test_a_tensor_that_nobody_knows_is_fetched_and_refused(hub: Hub) -> None:
    config, tensors = stored()
    shard(hub, config, {**tensors, "mtp.surprise": torch.zeros(1)}, size=1)
    with pytest.raises(UserError, match=r"unexpected 'mtp\.surprise', which would go unused"):
        checkpoints.load("some/target")


def test_a_tensor_that_is_missing_is_refused(hub: Hub) -> None:
    config, tensors = stored()
    shard(hub, config, {key: tensor for key, tensor in tensors.items() if key != UP})
    with pytest.raises(UserError, match=f"missing '{UP}', which nothing else provides"):
        checkpoints.load("some/target")


def test_a_drafter_in_one_file_is_fetched_whole(hub: Hub) -> None:
    folder = case("zlab_dflash_b8").drafter
    shutil.copytree(folder, hub.remote, dirs_exist_ok=True)
    (hub.remote / "training.log").write_text("not wanted")
    assert checkpoints.load("some/drafter").sha256 == checkpoints.load(folder).sha256
    assert hub.fetched == ["config.json", "model.safetensors"]


def test_a_pickled_drafter_is_fetched_whole(hub: Hub) -> None:
    folder = Path(case("zlab_dflash_b8").drafter)
    shutil.copy(folder / "config.json", hub.remote)
    torch.save(load_file(folder / "model.safetensors"), hub.remote / "pytorch_model.bin")
    assert checkpoints.load("some/drafter").sha256 == checkpoints.load(str(folder)).sha256
    assert hub.fetched == ["config.json", "pytorch_model.bin"]


def test_a_repository_without_a_configuration_is_a_users_error(hub: Hub) -> None:
    with pytest.raises(UserError, match=r"cannot be fetched from the hub: no config\.json in some/drafter"):
        checkpoints.load("some/drafter")
