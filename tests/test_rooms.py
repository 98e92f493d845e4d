"""Who may import whom, who does without torch, and that the harness knows no method by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HARNESS = ROOT / "harness" / "draftboard"
DRAFTERS = ROOT / "drafters" / "draftboard_drafters"

MAY_IMPORT = {
    "errors": set(),
    "record": {"errors"},
    "drafter": {"errors", "record"},
    "measure": {"errors", "record", "drafter"},
    "judge": {"errors", "record"},
    "show": {"errors", "record", "judge"},
    "cli": {"errors", "record", "measure", "judge", "show", "cli_gate", "cli_train"},
    "cli_gate": {"errors", "record", "measure", "judge", "show"},
    "cli_train": {"errors"},
    "__main__": {"cli", "errors"},
    "__init__": set(),
}
WITHOUT_TORCH = ("record", "judge", "show")

GENERIC = {"none"}
"""Module names that are also everyday words of the code."""


def imports(path: Path, package: str) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in it."""
    above = ".".join((package, *path.parent.relative_to(_root_of(path)).parts)).rstrip(".")
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = above.split(".")[: len(above.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _root_of(path: Path) -> Path:
    return HARNESS if path.is_relative_to(HARNESS) else DRAFTERS


def room_of(path: Path) -> str:
    return path.relative_to(HARNESS).parts[0].removesuffix(".py")


def reached(name: str) -> str | None:
    """The room an imported name lies in; None for other packages and for the package's own version."""
    parts = name.split(".")
    return parts[1] if parts[0] == "draftboard" and len(parts) > 1 and parts[1] in MAY_IMPORT else None


def wrong_arrows(path: Path) -> list[str]:
    room = room_of(path)
    allowed = MAY_IMPORT[room] | {room}
    rooms = ((name, reached(name)) for name in imports(path, "draftboard"))
    return [name for name, other in rooms if other is not None and other not in allowed]


SOURCES = sorted(HARNESS.rglob("*.py"))
DRAFTER_SOURCES = sorted(DRAFTERS.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_arrows_point_one_way(path):
    assert wrong_arrows(path) == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_harness_imports_no_drafter(path):
    assert not [name for name in imports(path, "draftboard") if name.startswith("draftboard_drafters")]


@pytest.mark.parametrize("path", [p for p in SOURCES if room_of(p) in WITHOUT_TORCH], ids=name_of)
def test_three_rooms_name_no_tensor_library(path):
    assert not [
        name for name in imports(path, "draftboard") if name.split(".")[0] in ("torch", "transformers")
    ]


@pytest.mark.parametrize("path", DRAFTER_SOURCES, ids=name_of)
def test_drafters_use_the_seam_and_helpers_of_the_engine(path):
    own = [name for name in imports(path, "draftboard_drafters") if name.startswith("draftboard.")]
    # Training reads stored replies and writes cards: facts. A drafter does not.
    facts = ("record",) if "training" in path.parts else ()
    assert not [name for name in own if reached(name) not in ("drafter", "measure", "errors", *facts)]
    assert not [name for name in own if any(part.startswith("_") for part in name.split("."))]


def test_the_walk_sees_a_wrong_arrow(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "HARNESS", tmp_path)
    (tmp_path / "judge").mkdir()
    file = tmp_path / "judge" / "x.py"
    file.write_text(
        "from draftboard.record import codec\n"
        "from ..show import site\n"
        "from .. import measure\n"
        "def late():\n    import draftboard.cli\n"
    )
    assert wrong_arrows(file) == ["draftboard.show.site", "draftboard.measure", "draftboard.cli"]


def test_three_rooms_work_where_torch_is_not_installed():
    script = f"""
import importlib, pkgutil, sys
sys.modules["torch"] = sys.modules["transformers"] = None
for room in {WITHOUT_TORCH!r}:
    package = importlib.import_module(f"draftboard.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
try:
    import torch
except ImportError:
    print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def methods() -> dict[str, str]:
    """Names of methods and where each comes from: modules of the drafters folder and labels of cards."""
    found = {}
    for path in DRAFTERS.glob("[!_]*.py"):
        found[path.stem] = path.name
        for call in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)):
            given = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
            if getattr(call.func, "id", "") == "Card" and not given.get("baseline"):
                found[given["label"]] = f"the card of {path.name}"
    return {name: place for name, place in found.items() if name.lower() not in GENERIC}


def mentions(text: str, names: dict[str, str]) -> list[str]:
    return [n for n in names if re.search(rf"(?<![A-Za-z0-9]){re.escape(n)}(?![A-Za-z0-9])", text, re.I)]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_harness_names_no_method(path):
    found = mentions(path.read_text(), methods())
    assert found == [], f"{path.relative_to(ROOT)} names {found}; say what is meant without the method"


def test_the_search_for_names_finds_them():
    names = methods()
    assert any(place.startswith("the card of") for place in names.values()), "no card was read"
    for name in names:
        assert mentions(f"if drafter == '{name.upper()}':", names)
    assert not mentions("a nonempty, unnamed word", {"none": "", "name": ""})
