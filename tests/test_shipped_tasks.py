"""The tasks that ship: whole, licensed, distinct, and made by the generator that is published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftboard.record.tasks import list_tasks, load_task

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {"chat": 80, "code": 164, "copy": 80}


def shipped_rows(name: str) -> list[dict[str, Any]]:
    text = (ROOT / "tasks" / name / "prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_task_loads_whole(name: str) -> None:
    task = load_task(name, ROOT)
    assert name in list_tasks(ROOT)
    assert (task.name, len(task.prompts), task.template) == (name, SHIPPED[name], "target")
    assert len(task.analysis) > 200
    assert all(row["licence"] and row["source"] for row in shipped_rows(name))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_readme_states_the_hash_of_what_ships(name: str) -> None:
    readme = (ROOT / "tasks" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.split("\n") if line.startswith(f"| [{name}]("))
    assert f"`{load_task(name, ROOT).sha256[:12]}`" in row


def test_chat_asks_both_turns_in_eight_equal_categories() -> None:
    prompts = load_task("chat", ROOT).prompts
    assert {len(prompt.turns) for prompt in prompts} == {2}
    assert list(Counter(prompt.category for prompt in prompts).values()) == [10] * 8


def test_code_wraps_every_problem_in_the_same_sentence() -> None:
    opening = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"
    assert all(prompt.turns[0].startswith(opening) for prompt in load_task("code", ROOT).prompts)


def test_copy_has_three_categories_and_short_prompts() -> None:
    prompts = load_task("copy", ROOT).prompts
    assert Counter(prompt.category for prompt in prompts) == {"verbatim": 32, "reformat": 24, "edit": 24}
    assert max(len(prompt.turns[0]) for prompt in prompts) < 4000


def test_a_verbatim_row_asks_for_exactly_its_reference() -> None:
    rows = [row for row in shipped_rows("copy") if row["category"] == "verbatim"]
    assert all(row["reference"] in row["turns"][0] and row["turns"][0] != row["reference"] for row in rows)


def test_reformat_rows_are_what_the_generator_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "harness" / "bench")
    import copy_rows

    made = {row["id"]: row for kind in copy_rows.REFORMATS for row in copy_rows.reformat_rows(kind, 6)}
    rows = [row for row in shipped_rows("copy") if row["category"] == "reformat"]
    assert [row for row in rows if made.get(row["id"]) != row] == []


def test_no_function_of_code_comes_back_in_copy() -> None:
    problems = [prompt.turns[0].partition('"""')[0] for prompt in load_task("code", ROOT).prompts]
    signatures = {"def " + problem.rpartition("def ")[2].partition("\n")[0] for problem in problems}
    assert len(signatures) > 150 and "def has_close_elements(numbers" in " ".join(signatures)
    asked = [row["turns"][0] for row in shipped_rows("copy")]
    assert [one for one in signatures if any(one in text for text in asked)] == []
