"""The target's replies to the training prompts: a file of token ids that grows and can be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from draftboard.drafter import UserError

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of a prompt, template included, and of the greedy reply to it."""


@dataclass(frozen=True, slots=True)
class Replies:
    """A .jsonl file of rows `{"prompt": [ids], "response": [ids]}`, one line each.

    A line is whole or it is not there: what a killed writer left of one is cut off by the next.
    """

    file: Path

    def __iter__(self) -> Iterator[Pair]:
        """Raises UserError naming the line that is none."""
        for number, line in enumerate(self._lines(), 1):
            try:
                row = json.loads(line)
                pair = tuple(row["prompt"]), tuple(row["response"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{self.file}, line {number}: not a reply ({error!r});"
                    " take the line out, and it is made again"
                ) from None
            yield pair

    def add(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Writes pairs as they come and hands them on."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.file.exists():
            os.truncate(self.file, self.file.read_bytes().rfind(b"\n") + 1)
        with self.file.open("a") as out:
            for prompt, response in pairs:
                row = {"prompt": prompt, "response": response}
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
                out.flush()
                yield prompt, response

    def sha256(self) -> str:
        """Of the rows, whatever their order."""
        return hashlib.sha256("\n".join(sorted(self._lines())).encode()).hexdigest()

    def _lines(self) -> list[str]:
        text = self.file.read_text() if self.file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()
