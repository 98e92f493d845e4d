"""The card beside weights that were trained here: what they cost, and that they are the ones it speaks of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from draftboard.drafter import Training, UserError

CARD, WEIGHTS = "card.json", "model.safetensors"


def training_of(path: str) -> Training | None:
    """What the training of the weights in a folder cost; None where no card lies beside them.

    Raises UserError when the weights are not those of the card, or the card lacks a figure.
    """
    folder = Path(path)
    if not (folder / CARD).is_file():
        return None
    card: dict[str, Any] = json.loads((folder / CARD).read_text())
    found = file_sha256(folder / WEIGHTS)
    if found != card.get("weights_sha256"):
        raise UserError(
            f"{folder / WEIGHTS} has sha256 {found[:12]}, and {CARD} beside it speaks of"
            f" {str(card.get('weights_sha256'))[:12]}; fetch the folder again or train it anew"
        )
    try:
        return Training(
            data_tokens=card["data"]["tokens"],
            token_visits=card["token_visits"],
            seconds=card["seconds"],
            cpu_seconds=card["cpu_seconds"],
            cpu=card["cpu"],
            energy_joules=card["energy_joules"],
        )
    except KeyError as error:
        raise UserError(f"{folder / CARD} has no {error}; train it anew") from None


def file_sha256(file: Path) -> str:
    """sha256 of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
