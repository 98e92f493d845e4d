"""A checkpoint written as it is told, right or wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def save_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """config.json and model.safetensors in a folder, made if need be; returns its path."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)
