"""A checkpoint's files: found, opened, and read without running anything that came with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub as hub
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftboard.errors import UserError
from draftboard_drafters.checkpoints.config import Config

_INDEX = "model.safetensors.index.json"
_WEIGHTS = ["*.safetensors", "pytorch_model*.bin"]


Belonging = Callable[[Config, Collection[str]], Collection[str]]
"""Which of a checkpoint's keys its drafter needs, by its configuration."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file, read when asked for."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Source:
    """An opened checkpoint: its configuration and the tensors in its files by key."""

    where: str
    config: Config
    tensors: Mapping[str, Stored]


def open_checkpoint(path: str, revision: str | None, belonging: Belonging) -> Source:
    """Opens a folder or a hub id; of the latter's files only those with keys that belong to the drafter are
    fetched. Raises UserError when there is nothing to open."""
    folder = _folder(path, revision, belonging)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise UserError(f"{path}: no *.safetensors and no pytorch_model*.bin in {folder}; give a checkpoint")
    tensors: dict[str, Stored] = {}
    for file in files:
        found = _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise UserError(f"{path}: tensor {twice[0]!r} is in {file.name} and in another file; keep one")
        tensors |= found
    return Source(path, _config(path, folder), tensors)


def _folder(path: str, revision: str | None, belonging: Belonging) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        return _fetched(path, revision, belonging)
    except (EntryNotFoundError, OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n", maxsplit=1)[0]
        raise UserError(
            f"drafter checkpoint {path!r} is no folder here and cannot be fetched from the hub: {first[:200]}"
        ) from error


def _fetched(path: str, revision: str | None, belonging: Belonging) -> Path:
    """The folder with a hub id's configuration and, of many files of weights, those that are needed: a module
    inside a target does not cost the target's."""
    folder = Path(hub.hf_hub_download(path, "config.json", revision=revision)).parent
    commit = folder.name  # the hub's cache calls it so; all other files have to be of the same one
    try:
        index = Path(hub.hf_hub_download(path, _INDEX, revision=commit))
    except EntryNotFoundError:
        return Path(hub.snapshot_download(path, revision=commit, allow_patterns=_WEIGHTS))
    files: dict[str, str] = json.loads(index.read_text())["weight_map"]
    for file in sorted({files[key] for key in belonging(_config(path, folder), files)}):
        hub.hf_hub_download(path, file, revision=commit)
    return folder


def _config(path: str, folder: Path) -> Config:
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"{path}: no config.json in {folder}; a drafter's conventions stand there")
    try:
        data: Any = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{path}: {file} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: {file} holds a {type(data).__name__}; expected an object")
    return Config(data, path)


def _safetensors(file: Path) -> dict[str, Stored]:
    try:
        opened: Any = safe_open(file, "pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read: {error}; fetch it again") from error

    def reader(key: str) -> Callable[[], Tensor]:
        return lambda: opened.get_tensor(key)

    keys: list[str] = list(opened.keys())
    return {key: Stored(tuple(opened.get_slice(key).get_shape()), reader(key)) for key in keys}


def _pickled(file: Path) -> dict[str, Stored]:
    """Tensors only: a pickle that holds anything else is refused by torch before it runs."""
    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).strip().split("\n", maxsplit=1)[0]
        raise UserError(f"{file} is not a plain file of tensors: {first[:200]}") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise UserError(f"{file} does not hold named tensors; expected a state dictionary")

    def reader(tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: tensor

    return {str(key): Stored(tuple(tensor.shape), reader(tensor)) for key, tensor in loaded.items()}
