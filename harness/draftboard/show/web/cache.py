"""What a built site keeps of its last build, so that the pages of a run are made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftboard.record.codec import from_json, to_json
from draftboard.record.records import Json
from draftboard.show.collect import RunRows

FILE = ".build.json"

State = tuple[int, int]
"""Size in bytes and time of change in ns: other than after the build, a page was touched."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as it was: the hash of its records, what there is to show of it, and the state of its pages."""

    digest: str
    rows: RunRows
    pages: dict[str, State]


@dataclass(frozen=True, slots=True)
class Cache:
    """The last build of `out`: its files, and its runs, which are none when pages are made otherwise now."""

    out: Path
    runs: dict[str, Json] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    def find(self, folder: str, records: Path) -> KeptRun | None:
        """The run whose pages lie in `folder`, if neither its records nor its pages changed since."""
        kept = self.runs.get(folder)
        if kept is None or kept["digest"] != digest_of(records):
            return None
        if any(state(self.out / name) != tuple(found) for name, found in kept["pages"].items()):
            return None
        return from_json(KeptRun, kept, folder)


def load(out: Path, stamp: str) -> Cache:
    """The cache of a folder. A file that cannot be read is none: everything is made again."""
    try:
        data = json.loads((out / FILE).read_text(encoding="utf-8"))
        return Cache(out, data["runs"] if data["stamp"] == stamp else {}, tuple(data["written"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Cache(out)


def save(out: Path, stamp: str, runs: dict[str, KeptRun], written: Sequence[str]) -> None:
    """Writes what this build leaves to the next one."""
    data = {"stamp": stamp, "runs": to_json(runs), "written": written}
    write(out / FILE, json.dumps(data, ensure_ascii=False, allow_nan=False))


def digest_of(folder: Path) -> str:
    """Hash of the files of a run."""
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.json")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def state(file: Path) -> State | None:
    """The state of a file; None when it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def write(file: Path, text: str) -> None:
    """Writes a file in one step; one that holds the text already is left alone."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
