"""`results/history/`: what each gate said, one small file per ruling, added and never changed.

No two processes write one file, and merging two branches is adding files. Figures in here are a log of what
was said at the time; anything exact is computed from the runs.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from draftboard.errors import UserError
from draftboard.record.codec import from_json, to_json
from draftboard.record.store import parse_utc

FOLDER = "history"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Said:
    """One arm of one ruling. `time_change` is what was judged, a natural logarithm of candidate over base: of
    the time per token, against stored runs relative to plain decoding."""

    task: str
    arm: str
    arm_id: str
    acceptance_length: float | None
    speedup: float | None
    tokens_per_s: float | None
    time_change: float | None
    time_change_lo: float | None
    time_change_hi: float | None
    target: str | None = None
    """None in files of before it was kept."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """One ruling of the gate."""

    schema: int
    created_utc: str
    against: str
    """`accepted` or a commit."""
    commit: str | None
    dirty: bool | None
    suite: str
    fingerprint: str
    testbed: str
    outcome: str
    sessions: int
    arms: tuple[Said, ...]
    because: tuple[str, ...] = ()
    """Every finding that was no pass; empty as well in files of before they were kept."""


def append(results: Path, ruled: Ruled) -> Path:
    """Adds a ruling as a file of its own, whole or not at all. Raises ValueError for NaN and infinities."""
    text = json.dumps(to_json(ruled), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    moment = parse_utc(ruled.created_utc, "history").strftime("%Y%m%dT%H%M%SZ")
    folder = results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{moment}-{(ruled.commit or 'unknown')[:8]}-{secrets.token_hex(4)}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def read(results: Path) -> list[Ruled]:
    """All rulings, oldest first by the moment and not by its spelling. Raises UserError naming a file that
    is not a ruling, for instance one with a conflict's markers in it."""
    found = [_read(path) for path in sorted((results / FOLDER).glob("*.json"))]
    return sorted(found, key=lambda one: parse_utc(one.created_utc, FOLDER))


def _read(path: Path) -> Ruled:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore the file or remove it") from None
    found = from_json(Ruled, data, str(path))
    if found.schema != SCHEMA:
        raise UserError(f"{path}: history format {found.schema} is unknown; this version reads {SCHEMA}")
    parse_utc(found.created_utc, path)
    return found
