"""The journal of a run under way: one line of JSON per event, on disk before the next one begins."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftboard.errors import UserError
from draftboard.record.codec import to_json
from draftboard.record.records import Json


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: what kind it is and its plain JSON data."""

    kind: str
    data: Json


class Journal:
    """An append-only file with one writer. A crash loses at most the line being written."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._mended = False

    def append(self, kind: str, data: Any) -> None:
        """Adds one event and waits until it is on disk. `data` is a record or plain JSON; NaN and
        infinities raise ValueError and write nothing."""
        line = json.dumps({"kind": kind, "data": to_json(data)}, ensure_ascii=False, allow_nan=False)
        self._mend()
        with self.path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Entry]:
        """All events in order; a torn last line, which a crash leaves, is not one. Raises UserError that
        names file and line for any other line that cannot be read."""
        return self._scan()[0]

    def _mend(self) -> None:
        """Cuts a torn last line off before the first append, which would otherwise join it."""
        if self._mended:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.truncate(self.path, self._scan()[1])
        self._mended = True

    def _scan(self) -> tuple[list[Entry], int]:
        """The events, and the length in bytes of the lines that hold them."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        entries: list[Entry] = []
        for number, line in enumerate(lines, start=1):
            entry = _parse(line)
            if entry is None and number < len(lines):
                raise UserError(
                    f"{self.path}:{number}: a broken line; remove the file to start this run anew"
                )
            if entry is not None:
                entries.append(entry)
        return entries, sum(len(line) for line in lines[: len(entries)])


def _parse(line: bytes) -> Entry | None:
    """The event on a whole line, None for a broken one."""
    try:
        event = json.loads(line) if line.endswith(b"\n") else None
        return Entry(event["kind"], event["data"]) if isinstance(event, dict) else None
    except (ValueError, KeyError):
        return None
