"""A toy target with prompts to train drafters for, and ways to die on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftboard_drafters.training import batches, commands
from draftboard_drafters.training.jobs import Job
from tiny import tiny_model
from tiny_folder import byte_tokenizer


class Killed(Exception):
    """The process is gone."""


def dying_at(word: str, times: int) -> Callable[[str], None]:
    """Says nothing and dies the given time that a line holds the word."""
    left = [times]

    def say(line: str) -> None:
        left[0] -= word in line
        if left[0] <= 0:
            raise Killed

    return say


def toy_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """All that a training needs, for a toy target of bytes."""
    target = tmp_path / "toy"
    tiny_model("llama", 0, vocab_size=260, num_hidden_layers=8, max_position_embeddings=1024).save_pretrained(
        target
    )
    byte_tokenizer().save_pretrained(target)
    asked = tmp_path / "prompts"
    asked.mkdir()
    rows = [{"id": f"p{i}", "turns": [f"say {'abc' * i}"]} for i in range(12)]
    (asked / "chat_toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(commands, "MAX_NEW_TOKENS", 12)
    monkeypatch.setattr(commands, "SLOTS", 4)
    monkeypatch.setattr(batches, "HELD_OUT", 3)
    monkeypatch.setattr(commands, "SAY_EVERY", 2)
    return Job(
        target=str(target),
        prompts=asked,
        replies=tmp_path / "replies.jsonl",
        work=tmp_path / "work",
        weights=tmp_path / "weights",
        results=tmp_path / "results",
        reply_tokens=120,
        tokens=600,
        say=lambda line: None,
    )
