"""The target's replies to the training prompts: a file of token ids that grows and can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from draftboard.drafter import UserError

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of a prompt, template included, and of the greedy reply to it."""


class Replies:
    """A .jsonl file of rows `{"prompt": [ids], "response": [ids]}`, one line each.

    A line is whole or it is not there: what a killed writer left of one is cut off by the next.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._tidy = False

    def __iter__(self) -> Iterator[Pair]:
        """Raises UserError naming the line that is none."""
        for number, line in enumerate(self._lines(), 1):
            try:
                row = json.loads(line)
                pair = tuple(row["prompt"]), tuple(row["response"])
                if {type(id) for ids in pair for id in ids} - {int}:
                    raise ValueError("its ids are no numbers")
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{self.file}, line {number}: not a reply ({error!r});"
                    " take the line out, and it is made again"
                ) from None
            yield pair

    def add(self, prompt: Sequence[int], reply: Sequence[int]) -> None:
        """Writes one more line; what a killed writer left of one goes first."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"prompt": prompt, "response": reply}, separators=(",", ":")) + "\n"
        with self.file.open("ab+") as file:
            if not self._tidy:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                self._tidy = True
            file.write(line.encode())

    def _lines(self) -> list[str]:
        text = self.file.read_text() if self.file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()
