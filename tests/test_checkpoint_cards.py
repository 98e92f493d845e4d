"""A card beside the weights is checked whenever they are read, and a damaged one is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_files import ZLAB
from draftboard.drafter import Training, UserError
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints.cards import CARD, WEIGHTS, file_sha256, training_of
from golden import case


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A golden drafter with a card of its weights."""
    shutil.copytree(case(ZLAB).drafter, tmp_path / "drafter")
    card = {
        "weights_sha256": file_sha256(tmp_path / "drafter" / WEIGHTS),
        "data": {"tokens": 40},
        "token_visits": 60,
        "seconds": 2,
        "cpu_seconds": 1.5,
        "cpu": "a processor",
        "energy_joules": None,
    }
    (tmp_path / "drafter" / CARD).write_text(json.dumps(card))
    return tmp_path / "drafter"


def test_a_card_goes_with_the_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Training(40, 60, 2, 1.5, "a processor")
    found = checkpoints.load(str(folder))
    assert found.training == cost
    assert checkpoints.serve(found, case(ZLAB).target).weights.training == cost
    monkeypatch.setenv("HOME", str(folder.parent))
    assert training_of("~/drafter") == cost


@pytest.mark.parametrize("read", [checkpoints.load, checkpoints.inspect])
def test_weights_of_another_card_are_refused_whenever_they_are_read(
    read: Callable[[str], Any], folder: Path
) -> None:
    shutil.copy(Path(case("zlab_dflash_b4").drafter) / WEIGHTS, folder / WEIGHTS)
    shutil.copy(Path(case("zlab_dflash_b4").drafter) / "config.json", folder / "config.json")
    with pytest.raises(UserError, match=r"model.safetensors has sha256 .*, and card.json .* speaks of"):
        read(str(folder))


DAMAGED: dict[str, tuple[str, str]] = {
    "no JSON": ("{", r"is no JSON: .*"),
    "not text": ("\udcff", r"is no JSON: .*"),
    "a list": ("[1]", r"holds \[1\]; expected an object"),
    "null": ("null", r"holds None; expected an object"),
}
FIGURES: dict[str, tuple[dict[str, Any], str]] = {
    "data is text": ({"data": "many"}, r"has nothing for 'tokens'; expected int"),
    "no data": ({"data": {}}, r"has nothing for 'tokens'; expected int"),
    "tokens as text": ({"data": {"tokens": "40"}}, r"has '40' for 'tokens'; expected int"),
    "no time": ({"seconds": None}, r"has None for 'seconds'; expected float or int"),
    "energy as text": ({"energy_joules": "5 J"}, r"has '5 J' for 'energy_joules'"),
}


def card_refused(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=f"{CARD} {message}.*; fetch the folder again or train it") as caught:
        training_of(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_card_that_cannot_be_read_is_named(fault: str, folder: Path) -> None:
    text, message = DAMAGED[fault]
    (folder / CARD).write_bytes(text.encode(errors="surrogateescape"))
    card_refused(folder, message)


@pytest.mark.parametrize("fault", FIGURES)
def test_a_card_without_a_figure_is_named(fault: str, folder: Path) -> None:
    change, message = FIGURES[fault]
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, **change}))
    card_refused(folder, message)


def test_a_card_without_its_weights_is_named(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match=f"{WEIGHTS} is not there, and {CARD} beside it speaks of it; fetch"):
        training_of(str(folder))
