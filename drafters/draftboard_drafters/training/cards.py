"""What a trained drafter cost and reached, beside its weights."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
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


_SUMS = ("steps", "token_visits", "seconds", "cpu_seconds")
_STAGE = (*_SUMS, "settings", "cpu", "products", "threads", "torch", "python", "commit")


def write_card(
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    state: State,
    data: Data,
    earlier: Mapping[str, Any] | None = None,
) -> None:
    """Writes `card.json`: every figure is of this training, unknown ones are null with a reason.

    `earlier` is the card of the weights that the training went on from. Costs are then sums over `stages`,
    which say what ran where; the rest is the last stage's.
    """
    last = state.curve[-1]
    card: dict[str, Any] = {
        "weights_sha256": file_sha256(folder / WEIGHTS),
        "data": asdict(data),
        "drafts_in_training": recipe.k,
        **_costs(settings, state, earlier),
        "parameters": _parameters(folder),
        "energy_joules": None,
        "energy_reason": "not read during training",
        "held_out_length": round(last.length, 4),
        "held_out_positions": [round(share, 4) for share in last.positions],
        "curve": _curve(state, earlier),
    }
    card["epochs"] = round(card["token_visits"] / data.tokens, 2)
    (folder / CARD).write_text(json.dumps(card, indent=1, allow_nan=False) + "\n")


def _costs(settings: Settings, state: State, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    stage: dict[str, Any] = {
        "settings": asdict(settings),
        "steps": state.step,
        "token_visits": state.tokens,
        "seconds": round(state.seconds, 1),
        "cpu_seconds": round(state.cpu_seconds, 1),
        "cpu": read_cpu()[0],
        "products": products(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }
    if earlier is None:
        return stage
    stages = [*earlier.get("stages", [{name: earlier[name] for name in _STAGE}]), stage]
    sums = {name: round(sum(one[name] for one in stages), 1) for name in _SUMS}
    cpus = " and ".join(dict.fromkeys(one["cpu"] for one in stages))
    return {**stage, **sums, "cpu": cpus, "stages": stages}


def _curve(state: State, earlier: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The held-out acceptance over all stages. A later stage begins where the one before it ended."""
    points = [asdict(point) for point in state.curve]
    if earlier is None:
        return points
    for point in points:
        point["tokens"] += earlier["token_visits"]
        point["cpu_seconds"] += earlier["cpu_seconds"]
    return [*earlier["curve"], *points[1:]]


def _parameters(folder: Path) -> int:
    tensors = load_file(folder / WEIGHTS).values()
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or None
