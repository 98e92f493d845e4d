"""Task folders and prompt files written for one test, and the words of a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.record.tasks import Task, load_task

TOML = """
title = "Mine"
version = 1
licence = "MIT"
origin = "here"
analysis = "nothing much"
template = "target"
turns = 2
"""
ROWS: list[dict[str, Any]] = [
    {"id": "a", "category": "x", "turns": ["one", "two"]},
    {"id": "b", "category": "y", "turns": ["three"], "reference": 3, "licence": "MIT", "source": "here"},
]


def as_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_task(root: Path, toml: str = TOML, rows: str = as_lines(ROWS), name: str = "mine") -> Task:
    """The task of a folder written for one test."""
    folder = root / "tasks" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(toml)
    (folder / "prompts.jsonl").write_text(rows, encoding="utf-8")
    return load_task(name, root)


def own_task(root: Path, rows: str) -> Task:
    (root / "own.jsonl").write_text(rows, encoding="utf-8")
    return load_task(str(root / "own.jsonl"), root)


def message(call: Callable[..., Any], *args: Any) -> str:
    """The one line a user reads when the call is refused."""
    with pytest.raises(UserError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)
