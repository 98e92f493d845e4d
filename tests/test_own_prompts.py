"""A user's own prompts: files of every layout, datasets, and what is refused in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftboard.record.tasks import Prompt, load_task
from task_factory import as_lines, message, own_task

NOWHERE = Path("/nowhere")


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"id": "a", "category": "x", "turns": ["one", "two"]}, Prompt("a", "x", ("one", "two"))),
        (
            {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []},
            Prompt("81", "writing", ("one", "two")),
        ),
        ({"turns": ["one"]}, Prompt("1", "all", ("one",))),
        ({"prompt": "one", "answer": 42}, Prompt("1", "all", ("one",))),
    ],
    ids=["ours", "fastchat", "turns", "prompt"],
)
def test_own_rows_of_every_layout(tmp_path: Path, row: dict[str, Any], prompt: Prompt) -> None:
    task = own_task(tmp_path, as_lines([row]))
    assert (task.prompts, task.name, task.licence) == ((prompt,), "own.jsonl", "not stated")


def test_only_a_newline_ends_a_row(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    task = own_task(tmp_path, "\ufeff" + json.dumps({"prompt": text}, ensure_ascii=False) + "\r\n\n")
    assert task.prompts[0].turns == (text,)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            as_lines([{"text": "x", "n": 1}]),
            "own.jsonl:1: expected a row with 'turns' or 'prompt', found n, text",
        ),
        ("17\n", "own.jsonl:1: expected a row with 'turns' or 'prompt', found 17"),
        (as_lines([{"turns": ["x"]}, {"turns": [1]}]), "own.jsonl:2.turns[0]: expected str, found 1"),
        (as_lines([{"prompt": None}]), "own.jsonl:1.turns: expected list, found None"),
        (as_lines([{"id": "2", "prompt": "x"}, {"prompt": "y"}]), "own.jsonl:2: the id '2' is already"),
    ],
)
def test_own_rows_that_are_refused(tmp_path: Path, rows: str, said: str) -> None:
    assert said in message(own_task, tmp_path, rows)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that the datasets library reads as two splits."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "quiz"
    folder.mkdir()
    (folder / "train.jsonl").write_text(as_lines([{"question": "one", "kind": "x"}]))
    (folder / "test.jsonl").write_text(
        as_lines([{"question": "two", "kind": "x"}, {"question": "three", "kind": "y"}])
    )
    return f"hf:{folder}"


def test_a_dataset_with_its_columns_named(dataset: str) -> None:
    task = load_task(f"{dataset}:test?prompt=question&category=kind", NOWHERE)
    assert task.name == "hf-quiz"
    assert task.prompts == (Prompt("1", "x", ("two",)), Prompt("2", "y", ("three",)))
    assert load_task(f"{dataset}:default:train?prompt=question", NOWHERE).prompts[0].turns == ("one",)


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "no column for the prompt; add ?prompt=<column>"),
        (":test?promt=question", "mapping 'promt' not found in"),
        (":test?prompt=questions", "did you mean 'question'? (have: kind, question)"),
        (":tset?prompt=question", "split 'tset' not found in"),
        ("?prompt=question", "which split? add :<split> (have: test, train)"),
        (":nosuch:test?prompt=question", "the dataset cannot be loaded: "),
        (":a:b:c?prompt=question", "expected hf:<dataset id>[:config][:split]?prompt=<column>"),
    ],
)
def test_a_dataset_address_that_is_refused(dataset: str, rest: str, said: str) -> None:
    assert said in message(load_task, dataset + rest, NOWHERE)
