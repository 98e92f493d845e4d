"""The card beside weights that were trained here: what they cost, and that they are the ones it speaks of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import NoneType
from typing import Any

from draftboard.drafter import Training, UserError

CARD, WEIGHTS = "card.json", "model.safetensors"

_AGAIN = "fetch the folder again or train it anew"


def training_of(path: str) -> Training | None:
    """What the training of the weights in a folder cost; None where no card lies beside them.

    Raises UserError when the weights are missing or not those of the card, the card cannot be read, or it
    lacks a figure.
    """
    folder = Path(path).expanduser()
    if not (folder / CARD).is_file():
        return None
    card = read_json_card(folder / CARD)
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder / WEIGHTS} is not there, and {CARD} beside it speaks of it; {_AGAIN}")
    found, stated = file_sha256(folder / WEIGHTS), card.get("weights_sha256")
    if found != stated:
        raise UserError(
            f"{folder / WEIGHTS} has sha256 {found[:12]}, and {CARD} beside it speaks of"
            f" {str(stated)[:12]}; {_AGAIN}"
        )
    return _training(card, folder / CARD)


def read_json_card(file: Path) -> dict[str, Any]:
    """What a card says. Raises UserError for a file that is no JSON object."""
    try:
        card: Any = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}; {_AGAIN}") from None
    if not isinstance(card, dict):
        raise UserError(f"{file} holds {card!r:.40}; expected an object; {_AGAIN}")
    return card


def _training(card: dict[str, Any], file: Path) -> Training:
    def figure(name: str, *kinds: type, of: Any = card) -> Any:
        if not isinstance(of, dict) or type(of.get(name, ...)) not in kinds:
            found = repr(of[name]) if isinstance(of, dict) and name in of else "nothing"
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{file} has {found:.40} for {name!r}; expected {expected}; {_AGAIN}")
        return of[name]

    return Training(
        data_tokens=figure("tokens", int, of=card.get("data")),
        token_visits=figure("token_visits", int),
        seconds=figure("seconds", float, int),
        cpu_seconds=figure("cpu_seconds", float, int),
        cpu=figure("cpu", str),
        energy_joules=figure("energy_joules", float, int, NoneType),
    )


def file_sha256(file: Path) -> str:
    """sha256 of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
