"""Task folders: how they are found, what is refused, what the hash covers, how samples are drawn."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftboard.record.tasks import Prompt, Task, list_tasks, load_task
from task_factory import ROWS, TOML, as_lines, make_task, message

ROOT = Path(__file__).resolve().parents[1]

# A task folder


def test_a_new_folder_is_a_new_task(tmp_path: Path) -> None:
    make_task(tmp_path, name="first")
    task = make_task(tmp_path, name="second")
    assert list_tasks(tmp_path) == ("first", "second")
    assert task.prompts == (Prompt("a", "x", ("one", "two")), Prompt("b", "y", ("three",)))
    assert load_task(str(tmp_path / "tasks" / "second"), Path("/nowhere")) == task


def test_only_the_first_turns_are_asked(tmp_path: Path) -> None:
    task = make_task(tmp_path, TOML.replace("turns = 2", "turns = 1"))
    assert [prompt.turns for prompt in task.prompts] == [("one",), ("three",)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('template = "target"', 'template = "raw"'),
        ("turns = 2", "turns = 1"),
        ("version = 1", "version = 2"),
        ("turns = 2", 'turns = 2\nsystem_prompt = "Be brief."'),
        ("turns = 2", "turns = 2\nthinking = false"),
    ],
)
def test_the_hash_covers_each_setting_that_changes_a_result(tmp_path: Path, old: str, new: str) -> None:
    assert make_task(tmp_path, TOML.replace(old, new)).sha256 != make_task(tmp_path).sha256


@pytest.mark.parametrize("key", ["title", "licence", "origin", "analysis"])
def test_the_hash_leaves_out_what_only_describes(tmp_path: Path, key: str) -> None:
    changed = make_task(tmp_path, TOML.replace(f'{key} = "', f'{key} = "other '))
    assert getattr(changed, key).startswith("other ")
    assert changed.sha256 == make_task(tmp_path).sha256


@pytest.mark.parametrize("change", [{"id": "z"}, {"category": "z"}, {"turns": ["one", "two "]}])
def test_the_hash_covers_the_prompts(tmp_path: Path, change: dict[str, Any]) -> None:
    changed = make_task(tmp_path, rows=as_lines([{**ROWS[0], **change}, ROWS[1]]))
    assert changed.sha256 != make_task(tmp_path).sha256


def test_the_hash_does_not_see_a_row_s_reference(tmp_path: Path) -> None:
    changed = make_task(tmp_path, rows=as_lines([{**ROWS[0], "reference": "an answer"}, ROWS[1]]))
    assert changed.sha256 == make_task(tmp_path).sha256


# What is refused


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert "task 'chatt' not found in" in message(load_task, "chatt", ROOT)
    assert "did you mean 'chat'? (have: chat, code, copy" in message(load_task, "chatt", ROOT)


def test_a_root_without_tasks_is_named(tmp_path: Path) -> None:
    assert f"no folder {tmp_path / 'tasks'}; run in a checkout or name one with --root" == message(
        list_tasks, tmp_path
    )


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("title = ", "task.toml: not TOML: "),
        (TOML + 'titel = "x"', "unknown key 'titel'"),
        (TOML.replace('licence = "MIT"', ""), "with the key 'licence'"),
        (TOML.replace("version = 1", 'version = "1"'), "task.toml.version: expected int, found '1'"),
        (TOML.replace('"target"', '"chatml"'), "task.toml.template: expected one of target, raw"),
        (TOML.replace("turns = 2", "turns = 0"), "task.toml.turns: expected 1 or more, found 0"),
    ],
)
def test_a_wrong_task_file_is_refused(tmp_path: Path, toml: str, said: str) -> None:
    assert said in message(make_task, tmp_path, toml)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (as_lines(ROWS) + '{"id": 1,}', "prompts.jsonl:3: not JSON: "),
        (as_lines([*ROWS, ROWS[0]]), "prompts.jsonl:3: the id 'a' is already that of line 1; ids are unique"),
        (
            as_lines([{**ROWS[0], "turn": []}]),
            "prompts.jsonl:1: expected a Row without the unknown key 'turn'",
        ),
        (as_lines([{"id": "a", "turns": ["x"]}]), "prompts.jsonl:1: expected a Row with the key 'category'"),
        (as_lines([{**ROWS[0], "turns": "one"}]), "prompts.jsonl:1.turns: expected list, found 'one'"),
        (as_lines([{**ROWS[0], "turns": []}]), "prompts.jsonl:1: a prompt without text"),
        (as_lines([{**ROWS[0], "turns": ["one", " "]}]), "prompts.jsonl:1: a prompt without text"),
        (as_lines([[1]]), "prompts.jsonl:1: expected dict, found [1]"),
        ("\n\n", "prompts.jsonl: no prompts; "),
    ],
)
def test_a_wrong_row_is_named_by_its_line(tmp_path: Path, rows: str, said: str) -> None:
    assert said in message(make_task, tmp_path, TOML, rows)


def test_a_missing_file_and_a_foreign_encoding_are_named(tmp_path: Path) -> None:
    make_task(tmp_path)
    prompts = tmp_path / "tasks" / "mine" / "prompts.jsonl"
    prompts.write_bytes(b'{"id": "\xe9"}')
    assert f"{prompts}: not UTF-8 at byte 8; save the file as UTF-8" == message(load_task, "mine", tmp_path)
    prompts.unlink()
    assert f"{prompts}: cannot be read: No such file or directory" == message(load_task, "mine", tmp_path)


# A sample


def numbered_task(tmp_path: Path, categories: str) -> Task:
    rows = [{"id": f"p{i}", "category": c, "turns": ["x"]} for i, c in enumerate(categories)]
    return make_task(tmp_path, rows=as_lines(rows))


def test_a_sample_is_even_over_categories_and_begins_the_larger_one(tmp_path: Path) -> None:
    task = numbered_task(tmp_path, "aaaaaaaabbbbcccc")
    whole = task.sample(None, 7)
    assert sorted(whole, key=lambda p: p.id) == sorted(task.prompts, key=lambda p: p.id)
    for limit in range(1, len(whole) + 1):
        assert task.sample(limit, 7) == whole[:limit]
        counts = Counter(prompt.category for prompt in whole[:limit])
        evenly = [counts[c] for c in "abc"]
        assert max(evenly) - min(evenly) <= 1 or limit > 12


def test_a_sample_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path: Path) -> None:
    task = numbered_task(tmp_path, "abcabcabc")
    assert task.sample(6, 1) == task.sample(6, 1) != task.sample(6, 2)
    rows = [{"id": p.id, "category": p.category, "turns": ["x"]} for p in reversed(task.prompts)]
    assert make_task(tmp_path, rows=as_lines(rows)).sample(6, 1) == task.sample(6, 1)


def test_a_sample_does_not_depend_on_pythons_hash_seed() -> None:
    ask = "from draftboard.record.tasks import load_task; from pathlib import Path;"
    ask += f"print([p.id for p in load_task('chat', Path({str(ROOT)!r})).sample(6, 0)])"
    said = {
        subprocess.check_output([sys.executable, "-c", ask], env={"PYTHONHASHSEED": seed}) for seed in "12"
    }
    assert said == {f"{[p.id for p in load_task('chat', ROOT).sample(6, 0)]}\n".encode()}


def test_a_limit_above_the_task_takes_all_and_one_below_1_is_refused(tmp_path: Path) -> None:
    task = numbered_task(tmp_path, "ab")
    assert len(task.sample(50, 0)) == 2
    assert message(task.sample, 0, 0) == "task 'mine': a limit of 0 prompts measures nothing; give 1 or more"


def test_reading_tasks_needs_no_torch() -> None:
    ask = "import sys, draftboard.record.tasks; print('torch' in sys.modules, 'datasets' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", ask], text=True) == "False False\n"
