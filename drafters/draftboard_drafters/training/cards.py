"""What a trained drafter cost and reached, beside its weights."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from draftboard.record.environment import read_cpu
from draftboard_drafters.checkpoints.cards import CARD, WEIGHTS, file_sha256
from draftboard_drafters.training.loop import Settings, State, products
from draftboard_drafters.training.objective import Recipe


@dataclass(frozen=True, slots=True)
class Data:
    """The texts trained on: hash of the replies' file, texts and tokens without the held-out ones."""

    sha256: str
    texts: int
    tokens: int


def write_card(folder: Path, recipe: Recipe, settings: Settings, state: State, data: Data) -> None:
    """Writes `card.json`: every figure is of this training, unknown ones are null with a reason."""
    last = state.curve[-1]
    card: dict[str, Any] = {
        "weights_sha256": file_sha256(folder / WEIGHTS),
        "data": asdict(data),
        "settings": asdict(settings),
        "drafts_in_training": recipe.k,
        "steps": state.step,
        "token_visits": state.tokens,
        "epochs": round(state.tokens / data.tokens, 2),
        "parameters": _parameters(folder),
        "seconds": round(state.seconds, 1),
        "cpu_seconds": round(state.cpu_seconds, 1),
        "cpu": read_cpu()[0],
        "products": products(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "energy_joules": None,
        "energy_reason": "not read during training",
        "commit": _commit(),
        "held_out_length": round(last.length, 4),
        "held_out_positions": [round(share, 4) for share in last.positions],
        "curve": [asdict(point) for point in state.curve],
    }
    (folder / CARD).write_text(json.dumps(card, indent=1, allow_nan=False) + "\n")


def _parameters(folder: Path) -> int:
    tensors = load_file(folder / WEIGHTS).values()
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or None
