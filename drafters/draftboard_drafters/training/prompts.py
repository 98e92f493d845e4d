"""The training prompts, and that none of them is a benchmark's."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftboard.drafter import UserError

SHARED_WORDS = 13
"""Consecutive words that no training text may share with a benchmark prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question. `kind` is the beginning of its file's name: chat, code, edit or copy."""

    id: str
    kind: str
    text: str


def read(folder: Path) -> list[Prompt]:
    """The first turns of all rows of the folder's .jsonl files. Raises UserError where there is none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(f"no .jsonl files of prompts in {folder}; name their checkout with --root")
    return [
        Prompt(row["id"], file.name.split("_")[0], row["turns"][0])
        for file in files
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())
    ]


def ordered(prompts: Sequence[Prompt], seed: int = 0) -> list[Prompt]:
    """All prompts in a seeded order; every beginning of it holds each kind in its share."""
    dice, by_kind = random.Random(seed), dict[str, list[Prompt]]()
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    placed = list[tuple[float, Prompt]]()
    for kind in sorted(by_kind):
        dice.shuffle(by_kind[kind])
        placed += [((i + dice.random()) / len(by_kind[kind]), p) for i, p in enumerate(by_kind[kind])]
    return [prompt for _, prompt in sorted(placed, key=lambda pair: pair[0])]


def template(tokenizer: Any, text: str) -> list[int]:
    """The ids of a conversation with this one question, waiting for the reply."""
    messages = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def shared_with(texts: Iterable[str], benchmark: Iterable[str]) -> list[int]:
    """Indices of the texts that share a run of 13 words with a benchmark text, or are one in whole."""
    known = {run for text in benchmark for run in _runs(text)}
    return [index for index, text in enumerate(texts) if any(run in known for run in _runs(text))]


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    if len(words) < SHARED_WORDS:
        yield tuple(words)
    for start in range(len(words) - SHARED_WORDS + 1):
        yield tuple(words[start : start + SHARED_WORDS])
