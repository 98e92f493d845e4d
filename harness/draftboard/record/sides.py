"""One side of a comparison, named by the user: a run, a folder of runs, or the results at a git ref."""

from __future__ import annotations

import io
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftboard.errors import UserError
from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import RUN_FILE, SCHEMAS, Store, load, parse_utc

Run = tuple[RunRecord, Sequence[Arm]]


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one side, oldest first, and what named them."""

    kind: Literal["run", "folder", "ref"]
    runs: list[Run]


def read_side(text: str, root: Path) -> Side:
    """The runs that `text` names: a run's folder, a testbed's, a folder of results or a
    checkout, the id of a run in `root/results` or its beginning, or a git ref of the checkout at `root`, for
    the results committed there. A folder goes before a ref of its name when there are runs in it;
    `refs/heads/NAME` is always the ref. Raises UserError when it is none of these."""
    if text and (Path(text).name == RUN_FILE or (Path(text) / RUN_FILE).is_file()):
        return Side("run", [load(Path(text))])
    is_folder = bool(text) and Path(text).is_dir()
    found = _in_folder(Path(text).resolve()) if is_folder else []
    if found or (is_folder and not _is_ref(text, root)):
        return Side("folder", found)
    store = Store(root / "results")
    if text and any(run.record.id.startswith(text) for run in store.runs()):
        return Side("run", [load(store.find(text).path)])
    if not _is_ref(text, root):
        raise UserError(
            f"{text!r} is no folder, no run in {store.root} and no git ref; `draftboard results` lists runs"
        )
    return Side("ref", _committed(text, root))


def read_runs(folder: Path) -> list[Run]:
    """All runs of a results folder, oldest first."""
    return [load(run.path) for run in Store(folder).runs()]


def _in_folder(path: Path) -> list[Run]:
    """The runs of a checkout, a folder of results, or one testbed in it."""
    if (path / "results").is_dir():
        return read_runs(path / "results")
    if found := read_runs(path):
        return found
    beds = (file.parent for file in path.glob(f"*/{RUN_FILE}") if file.parent.name != SCHEMAS)
    return sorted(map(load, beds), key=lambda found: (parse_utc(found[0].created_utc, path), found[0].id))


def _committed(ref: str, root: Path) -> list[Run]:
    """The results in the commit, none when it has no results."""
    packed = _git(root, "archive", "--format=zip", ref, "results")
    if packed is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder)
        try:
            return read_runs(Path(folder) / "results")
        except UserError as error:
            raise UserError(f"in commit {ref}: {str(error).replace(f'{folder}/', '')}") from None


def _is_ref(text: str, root: Path) -> bool:
    return bool(text) and _git(root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}") is not None


def _git(root: Path, *command: str) -> bytes | None:
    """What git prints, or None when it fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
