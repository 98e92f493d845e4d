"""Finding drafter modules by name, and binding their options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.measure import plugins

PACKAGE = "draftboard_drafters"

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from draftboard.drafter import Card

CARD = Card("Mine", 90, "m", "n", "lookup", None, (), "w", None)

@dataclass(frozen=True)
class Memo:
    size: int = 0

Mode = Literal["x", "y"]

def build(target, sampler, *, width: int, name: str = "a", mode: Mode = "x", cut: float | None = None):
    return Memo(width)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A drafters package `shop` in the working directory, with a private module and a sub-package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    folder = tmp_path / "shop"
    (folder / "training").mkdir(parents=True)
    for name in ("__init__", "_parts", "training/__init__"):
        (folder / f"{name}.py").write_text("")
    (folder / "mine.py").write_text(GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lists_modules_but_neither_private_ones_nor_sub_packages(shop: Path) -> None:
    assert plugins.list_drafters("shop") == ["mine"]


def test_lists_a_module_that_was_just_added(shop: Path) -> None:
    (shop / "another.py").write_text(GOOD)
    assert plugins.list_drafters("shop") == ["another", "mine"]


def test_a_missing_package_is_named() -> None:
    assert "'no_such_drafters'" in refused(plugins.list_drafters, "no_such_drafters")


def test_loads_the_same_drafter_by_short_name_and_by_dotted_name(shop: Path) -> None:
    assert plugins.load("mine", "shop") is plugins.load("shop.mine", PACKAGE)


def test_a_dotted_name_is_found_in_the_working_directory(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shop.parent / "elsewhere" / "drafts"
    other.mkdir(parents=True)
    (other / "found_here.py").write_text(GOOD)
    monkeypatch.chdir(other.parent)
    assert plugins.short_name(plugins.load("drafts.found_here", PACKAGE)) == "found_here"


def test_loads_a_file_once(shop: Path) -> None:
    path = shop.parent / "loose_drafter.py"
    path.write_text(GOOD)
    module = plugins.load("loose_drafter.py", PACKAGE)
    assert module is plugins.load(str(path), PACKAGE)
    assert plugins.short_name(module) == "loose_drafter"


def test_a_file_cannot_take_another_modules_name(shop: Path) -> None:
    (shop.parent / "json.py").write_text(GOOD)
    assert "rename it" in refused(plugins.load, "json.py", PACKAGE)


def test_a_file_that_fails_is_not_half_loaded(shop: Path) -> None:
    (shop.parent / "broken_drafter.py").write_text("raise RuntimeError('on import')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on import"):
            plugins.load("broken_drafter.py", PACKAGE)


def test_an_unknown_short_name_is_answered_with_the_nearest() -> None:
    message = refused(plugins.load, "ngrm", PACKAGE)
    assert "did you mean 'ngram'?" in message
    assert PACKAGE in message


@pytest.mark.parametrize("name", ["_parts", "training"])
def test_private_modules_and_sub_packages_are_no_drafters(shop: Path, name: str) -> None:
    assert "have: mine" in refused(plugins.load, name, "shop")


@pytest.mark.parametrize("name", ["no.such.module", "shop.nothing", "nowhere.py"])
def test_what_is_not_there_is_named(shop: Path, name: str) -> None:
    assert repr(name) in refused(plugins.load, name, PACKAGE)


def test_a_missing_dependency_of_a_drafter_is_not_mistaken_for_a_missing_drafter(shop: Path) -> None:
    (shop / "needy.py").write_text("import not_installed_anywhere")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        plugins.load("shop.needy", PACKAGE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "CARD"),
        (GOOD.replace("def build", "def make"), "has no build"),
        (GOOD.replace("*, width", "width"), "expected build(target, sampler, *"),
        (GOOD.replace("target, sampler, *, ", "target, *, sampler, "), "expected build(target, sampler, *"),
        (GOOD.replace("*, width", "*args, width"), "expected build(target, sampler, *"),
        (GOOD.replace("None = None):", "None = None, **rest):"), "expected build(target, sampler, *"),
    ],
)
def test_a_module_that_is_no_drafter_is_refused(shop: Path, text: str, said: str) -> None:
    (shop / "mine.py").write_text(text)
    assert said in refused(plugins.load, "mine", "shop")


def test_options_are_bound_with_their_defaults(shop: Path) -> None:
    module = plugins.load("mine", "shop")
    assert plugins.bind(module, {"width": 3}) == {"width": 3, "name": "a", "mode": "x", "cut": None}
    assert plugins.bind(module, {"cut": 1, "width": 3})["cut"] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"widht": 3},
            "option 'widht' not found in mine; did you mean 'width'? (have: cut, mode, name, width)",
        ),
        ({}, "needs the option 'width'"),
        ({"width": "3"}, "mine.width: expected int, found '3'"),
        ({"width": True}, "mine.width: expected int, found True"),
        ({"width": 3, "mode": "z"}, "mine.mode: expected one of x, y, found 'z'"),
        ({"target": 1, "width": 3}, "option 'target' not found"),
    ],
)
def test_wrong_options_are_refused(shop: Path, options: dict[str, Any], said: str) -> None:
    assert said in refused(plugins.bind, plugins.load("mine", "shop"), options)
