"""From a target's name to a target that is ready, or a refusal that says why, before anything is timed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from draftboard.errors import UserError
from draftboard.measure.embedded import EMBEDDED_ID, ensure
from draftboard.measure.heap import freed_at_once
from draftboard.measure.linear import native_bfloat16
from draftboard.measure.out_of_memory import out_of_memory
from draftboard.measure.rollback import check_rewind, refuse_uncuttable, uncuttable
from draftboard.measure.source_model import read_model
from draftboard.measure.target import TargetModel

transformers_logging.disable_progress_bar()  # a run has its own

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

DEFAULT_CONTEXT = 4096
"""Positions of the cache where nobody asks for more."""


def resolve_device(name: str = "auto") -> torch.device:
    """The device that `name` means; `auto` is the first GPU, else the CPU.

    Raises UserError for a device that is not there or that the clock cannot time.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda:0" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device {name!r} is not known; choose auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(f"device {name!r} is not there; torch sees {gpus} GPUs: choose auto, cpu or cuda:N")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} cannot be timed here; choose auto, cpu, cuda or cuda:N")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that `name` means; `auto` is bfloat16 where the hardware multiplies it, else float32."""
    if name == "auto":
        fast = device.type == "cuda" or native_bfloat16()
        return torch.bfloat16 if fast else torch.float32
    if name not in DTYPES:
        raise UserError(f"dtype {name!r} is not known; choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def load_target(
    name: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    revision: str | None = None,
    max_context: int | None = None,
) -> TargetModel:
    """The target called `name`: the embedded one's id, a local folder, or a hub id.

    `max_context` positions are allocated (default: the model's own limit or 4096, whichever is smaller).
    Raises UserError for a model that cannot be found, loaded or rewound.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events and synchronisation go by the current device
    source = resolve_source(name)
    config = read_config(source, revision)
    context = _context(config, max_context)
    refuse_uncuttable(config, context)
    with freed_at_once():
        target = _target(name, source, config, revision, dtype, device, context)
    check_rewind(target)
    return target


def _target(
    name: str,
    source: str,
    config: Any,
    revision: str | None,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
) -> TargetModel:
    model = _model(source, revision, dtype, device)
    if getattr(model, "_is_stateful", False):
        raise uncuttable(config, "it keeps a recurrent state")
    id, revision = identity(name, source, config, revision)
    return TargetModel(
        model,
        id=id,
        revision=revision,
        max_context=context,
        tokenizer=load_tokenizer(source, revision),
        spend=True,
    )


def identity(name: str, source: str, config: Any, revision: str | None) -> tuple[str, str | None]:
    """The id and revision that a record gives a target: equal on every machine, without the user's folders.

    A hub id is pinned by its commit, a folder by the hash of its weights; the embedded target by its name.
    """
    id = target_id(name)
    if name == EMBEDDED_ID:
        return id, revision
    if not Path(source).is_dir():
        return id, getattr(config, "_commit_hash", None) or revision
    sha256 = weights_sha256(source)
    return id, None if sha256 is None else f"sha256:{sha256[:12]}"


def target_id(name: str) -> str:
    """The id of the target called `name`: a folder goes by its last name, others by the name itself."""
    return Path(name).resolve().name if name != EMBEDDED_ID and Path(name).is_dir() else name


def weights_sha256(source: str, revision: str | None = None) -> str | None:
    """Hash of a model's weight files in the order of their names: for a single file, that file's own sha256.
    None where the weights lie in files of another kind."""
    folder = Path(cached_file(source, "config.json", revision=revision)).parent
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def resolve_source(name: str) -> str:
    """The folder or hub id behind a target's name; makes the embedded target's folder when asked for. Raises
    UserError for a path that is no folder."""
    if name.startswith(("/", "./", "../", "~")) and not Path(name).is_dir():
        raise UserError(
            f"cannot load {name!r}: no such folder; give a folder with config.json and safetensors,"
            " or a hub id such as org/model"
        )
    return str(ensure()) if name == EMBEDDED_ID else name


def position_limit(name: str, revision: str | None = None) -> int | None:
    """The most positions that the target called `name` is made for; None where its configuration has none."""
    return _limit(read_config(resolve_source(name), revision))


def load_tokenizer(source: str, revision: str | None = None) -> Any:
    """The tokenizer of a folder or hub id, or None where there is none. Raises UserError for a broken one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except json.JSONDecodeError as error:
        raise UserError(f"cannot read the tokenizer of {source!r}: {error}; fetch its files again") from error
    except (OSError, ValueError, TypeError, KeyError):
        return None
    # Without files some classes make an empty tokenizer, which would turn every prompt into nothing.
    empty = set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens)
    return None if empty else tokenizer


def read_config(source: str, revision: str | None) -> Any:
    """The configuration of the language model in a folder or under a hub id, also where it is one part of
    several. Raises UserError where there is none that can be read."""
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    # What a library says of files the user named is about those files, whatever type it raises.
    except Exception as error:
        raise cannot_load(source, error) from error
    return config.get_text_config()


def _model(source: str, revision: str | None, dtype: torch.dtype, device: torch.device) -> Any:
    try:
        model, missing = read_model(source, revision, dtype)
    except Exception as error:
        if out_of_memory(error):
            raise
        raise cannot_load(source, error) from error
    if missing:
        raise UserError(
            f"the weights of {source!r} lack {len(missing)} tensors, the first is {missing[0]!r};"
            " a model with random parts is not measured: fetch its files again"
        )
    return model.to(device)


def cannot_load(source: str, error: Exception) -> UserError:
    """The error for a folder or hub id of which a library says `error`."""
    kind = "folder" if Path(source).is_dir() else "hub id (or a folder that does not exist)"
    first = (str(error).strip() or type(error).__name__).split("\n", maxsplit=1)[0]
    return UserError(
        f"cannot load {source!r} as a causal LM from a {kind}: {first[:200].rstrip(' .:')};"
        " give a folder with config.json and safetensors, or a hub id that this machine can reach"
    )


def _context(config: Any, asked: int | None) -> int:
    limit = _limit(config)
    if asked is None:
        return DEFAULT_CONTEXT if limit is None else min(limit, DEFAULT_CONTEXT)
    if limit is not None and asked > limit:
        raise UserError(
            f"the longest conversation may need {asked} positions, more than the target's limit of {limit};"
            f" leave such prompts out with --max-context {limit}, or lower --max-new-tokens"
        )
    return asked


def _limit(config: Any) -> int | None:
    found = getattr(config, "max_position_embeddings", None)
    return int(found) if found else None
