"""Golden checkpoints rewritten with a change, as folders that the loader can be tried on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftboard.drafter import UserError
from draftboard_drafters import checkpoints
from golden import case

Tensors = dict[str, Tensor]

ZLAB, SPECULATORS = "zlab_dflash_b8", "speculators_dflash"
DEEPSPEC, GATED, RNN = (f"deepspec_dspark_{head}" for head in ("vanilla", "gated", "rnn"))
BLOCK_DRAFTERS = (ZLAB, "zlab_dflash_b4", "deepspec_dflash", DEEPSPEC, GATED, RNN, SPECULATORS)
"""Golden checkpoints of DFlash and DSpark."""


def read(name: str) -> tuple[dict[str, Any], Tensors]:
    """Configuration and tensors of a golden checkpoint, as stored."""
    folder = Path(case(name).drafter)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> str:
    """A checkpoint folder with these; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def changed(
    folder: Path,
    name: str,
    config: Callable[[dict[str, Any]], Any] = lambda config: None,
    tensors: Callable[[Tensors], Any] = lambda tensors: None,
) -> str:
    """A golden checkpoint whose configuration and tensors these functions changed in place."""
    stated, stored = read(name)
    config(stated)
    tensors(stored)
    return write(folder, stated, stored)


def refused(path: str, message: str) -> None:
    """Asserts that the loader stops with one line that matches."""
    with pytest.raises(UserError, match=message) as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)
