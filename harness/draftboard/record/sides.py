"""One side of a comparison, named by the user: a run, a folder of runs, or the results at a git ref."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from draftboard.errors import UserError
from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import RUN_FILE, Store, load

Run = tuple[RunRecord, Sequence[Arm]]


def read_side(text: str, root: Path) -> list[Run]:
    """The runs that `text` names, oldest first: a run's folder, a testbed's or a folder of results, the id
    of a run in `root/results` or its beginning, or a git ref of the checkout at `root`, for the results
    committed there. Raises UserError when it is none of these."""
    path = Path(text)
    if path.is_dir():
        return [load(path)] if (path / RUN_FILE).exists() else _in_folder(path.resolve())
    store = Store(root / "results")
    found = [run for run in store.runs() if run.record.id.startswith(text)]
    if found:
        return [load(store.find(text).path)]
    if _git(root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}") is None:
        raise UserError(
            f"{text!r} is no folder, no run in {store.root} and no git ref; `draftboard results` lists runs"
        )
    return _committed(text, root)


def read_runs(folder: Path) -> list[Run]:
    """All runs of a results folder, oldest first."""
    return [load(run.path) for run in Store(folder).runs()]


def _in_folder(path: Path) -> list[Run]:
    """The runs of a folder of results, or of one testbed in it."""
    found = read_runs(path)
    if found or not any(path.glob(f"*/{RUN_FILE}")):
        return found
    return [load(run.path) for run in Store(path.parent).runs() if run.path.parent == path]


def _committed(ref: str, root: Path) -> list[Run]:
    """The results in the commit, none when it has no results."""
    packed = _git(root, "archive", ref, "results")
    if packed is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return read_runs(Path(folder) / "results")


def _git(root: Path, *command: str) -> bytes | None:
    """What git prints, or None when it fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
