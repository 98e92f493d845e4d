"""Loading tiny targets from folders, and what a refusal must look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure.loading import load_target
from draftboard.measure.target import TargetModel
from tiny import tiny_model


def load(name: str | Path, **options: Any) -> TargetModel:
    return load_target(str(name), **{"dtype": torch.float32, "device": torch.device("cpu"), **options})


def refused(act: Callable[[], object], *parts: str) -> None:
    """`act` raises a UserError of one line that says each of `parts`."""
    with pytest.raises(UserError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    for part in parts:
        assert part in said


def saved(folder: Path, family: str = "llama", **changes: Any) -> Path:
    tiny_model(family, **changes).save_pretrained(folder)
    return folder
