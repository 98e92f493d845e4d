"""What a trained drafter cost and reached, beside its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from draftboard.drafter import UserError
from draftboard_drafters.checkpoints.cards import CARD, WEIGHTS, file_sha256, training_of
from draftboard_drafters.training.loop import Point, Settings, State
from draftboard_drafters.training.objective import Recipe

_SUMS = ("steps", "token_visits", "seconds", "cpu_seconds")
_STAGE = (*_SUMS, "settings", "cpu", "products", "threads", "torch", "python", "commit")
_WITH = ("start", "held_out_length_before", "processes")
"""What a stage may have beyond `_STAGE`."""


@dataclass(frozen=True, slots=True)
class Data:
    """The texts trained on: hash of their tokens, how many there are, and their tokens in all."""

    sha256: str
    texts: int
    tokens: int


def write_card(
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    state: State,
    data: Data,
    about: Mapping[str, str],
    earlier: Mapping[str, Any] | None = None,
    before: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Writes `card.json`: every figure is of this training, unknown ones are null with a reason.

    `earlier` is the card of the weights that the training went on from. Costs are then sums over `stages`,
    which say what ran where; the rest is the last stage's. `before` are the cards of the methods that the
    training started from: their costs are named, not added.
    """
    last = state.curve[-1]
    costs = _costs(_stage(settings, state, about), earlier)
    card: dict[str, Any] = {
        "weights_sha256": file_sha256(folder / WEIGHTS),
        "data": asdict(data),
        "vocabulary": about.get("vocabulary"),
        "drafts_in_training": recipe.k,
        **costs,
        "epochs": round(costs["token_visits"] / data.tokens, 2),
        **_starts(earlier, before),
        "parameters": _parameters(folder),
        "energy_joules": None,
        "energy_reason": "not read during training",
        "held_out_length": round(last.length, 4),
        "held_out_positions": [round(share, 4) for share in last.positions],
        "curve": _curve(state, earlier),
    }
    _write(folder, card)


def read_card(folder: Path) -> dict[str, Any] | None:
    """The card of the weights in a folder; None where there is none.

    Raises UserError when it speaks of others, or lacks what a training that goes on from it needs.
    """
    if training_of(str(folder)) is None:
        return None
    card: dict[str, Any] = json.loads((folder / CARD).read_text())
    if lacking := next(_lacking(card), None):
        raise UserError(f"{folder / CARD} has no {lacking!r}; restore it, or train the weights anew")
    return card


def _lacking(card: Mapping[str, Any]) -> Iterator[str]:
    """What a training that goes on needs and does not find; a commit may be null, where none was known."""
    for one in (card, *card.get("stages", ()), *card.get("not_kept", ())):
        stage = one if isinstance(one, dict) else {}
        yield from (f"number of {name}" for name in _SUMS if type(stage.get(name)) not in (int, float))
        yield from (name for name in _STAGE if name not in stage)
    yield from () if card.get("curve") else ("curve",)
    yield from () if "sha256" in card["data"] else ("data.sha256",)


def stated(folder: Path) -> Mapping[str, Any]:
    """What the card in a folder says, whether or not it is true of the weights; {} where there is none.

    Raises UserError for one that cannot be read: nobody knows what its weights went through.
    """
    file = folder / CARD
    try:
        card = json.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); restore it, or remove {folder} to begin anew"
        ) from None
    return card if isinstance(card, dict) else {}


def last_stage(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the training that made the weights what they are."""
    stage: Mapping[str, Any] = card["stages"][-1] if card.get("stages") else card
    return stage


def note_not_kept(folder: Path, settings: Settings, state: State, about: Mapping[str, str]) -> None:
    """Adds to the card of shipped weights a training on from them that did not make them better."""
    card = json.loads((folder / CARD).read_text())
    stage = {**_stage(settings, state, about), "curve": [_point(point) for point in state.curve]}
    _write(folder, {**card, "not_kept": [*card.get("not_kept", []), stage]})


def _write(folder: Path, card: Mapping[str, Any]) -> None:
    new = folder / f"{CARD}.new"
    new.write_text(json.dumps(card, indent=1, allow_nan=False) + "\n")
    new.replace(folder / CARD)


def _stage(settings: Settings, state: State, about: Mapping[str, str]) -> dict[str, Any]:
    """One training. `start` and `held_out_length_before` are of the weights that it went on from; `processes`
    say what it ran on where that changed."""
    *earlier, last = state.processes
    stage = {
        "settings": asdict(settings),
        "steps": state.step,
        "token_visits": state.tokens,
        "seconds": round(state.seconds, 1),
        "cpu_seconds": round(state.cpu_seconds, 1),
        **last,
        "cpu": _joined(state.processes),
    }
    if earlier:
        stage["processes"] = state.processes
    if "start" in about:
        stage["start"] = about["start"]
        stage["held_out_length_before"] = round(state.curve[0].length, 4)
    return stage


def _costs(stage: dict[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    if earlier is None:
        return stage
    first = {name: earlier[name] for name in (*_STAGE, *_WITH) if name in earlier}
    stages = [*earlier.get("stages", [first]), stage]
    sums = {name: round(sum(one[name] for one in stages), 1) for name in _SUMS}
    ran = [process for one in stages for process in one.get("processes", [one])]
    return {**{name: stage[name] for name in _STAGE}, **sums, "cpu": _joined(ran), "stages": stages}


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(one["cpu"] for one in parts))


def _starts(
    earlier: Mapping[str, Any] | None, before: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    if earlier is not None:
        return {name: earlier[name] for name in ("started_from", "not_kept") if name in earlier}
    named = ("weights_sha256", "token_visits", "cpu_seconds")
    starts = {method: {name: card[name] for name in named} for method, card in (before or {}).items()}
    return {"started_from": starts} if starts else {}


def _curve(state: State, earlier: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The held-out acceptance over all stages. A later stage begins where the one before it ended."""
    points = [_point(point) for point in state.curve]
    if earlier is None:
        return points
    for point in points:
        point["tokens"] += earlier["token_visits"]
        point["cpu_seconds"] += earlier["cpu_seconds"]
    return [*earlier["curve"], *points[1:]]


def _point(point: Point) -> dict[str, Any]:
    return {**asdict(point), "positions": list(point.positions)}


def _parameters(folder: Path) -> int:
    tensors = load_file(folder / WEIGHTS).values()
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
