"""Builds to measure beside each other: this checkout, and any commit of it in a worktree of its own.

A commit's worktree and, where its pinned packages differ from this checkout's, its virtual environment are
made once and kept in the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from draftboard.errors import UserError
from draftboard.measure.embedded import default_cache
from draftboard.record.ids import digest

UNUSED_DAYS = 14
"""After so long without use a commit's worktree goes."""


@dataclass(frozen=True, slots=True)
class Build:
    """Code in a folder and the Python that runs it."""

    name: str
    root: Path
    python: Path

    def environment(self, **more: str) -> dict[str, str]:
        """The process environment in which this build's code is the one that is imported."""
        sources = os.pathsep.join(str(self.root / part) for part in ("harness", "drafters"))
        return {**os.environ, "PYTHONPATH": sources, **more}


def this_checkout(root: Path) -> Build:
    """The working tree at `root`, run by this process's Python."""
    return Build("candidate", root.resolve(), Path(sys.executable))


def at_commit(ref: str, root: Path, cache: Path | None = None) -> Build:
    """The commit that `ref` names. Raises UserError when there is none or its packages cannot be had."""
    sha = commit_of(ref, root)
    cache = cache or default_cache()
    folder = cache / "builds" / sha[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not _is_sound(folder, sha):
            shutil.rmtree(folder, ignore_errors=True)
            if _git(root, *_WORKTREE, str(folder), sha) is None:
                raise UserError(f"git could not check {ref!r} out into {folder}; is there room on the disk?")
        os.utime(folder)
    _clear_unused(folder.parent, root)
    return Build("base", folder, _python_for(folder, root, cache / "environments"))


def _clear_unused(builds: Path, root: Path) -> None:
    """Removes worktrees that no gate used for weeks; nobody else does."""
    now = time.time()
    old = [one for one in builds.glob("*/") if now - one.stat().st_mtime > UNUSED_DAYS * 86400]
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    if old:
        _git(root, "worktree", "prune")


def commit_of(ref: str, root: Path) -> str:
    """The hash of the commit that `ref` names. Raises UserError when there is none."""
    sha = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if sha is None:
        raise UserError(f"no commit {ref!r} in {root.resolve()}; a shallow clone may lack it: fetch it first")
    return sha


_WORKTREE = ("worktree", "add", "--force", "--detach")


def _is_sound(folder: Path, sha: str) -> bool:
    """True for a worktree that holds the commit as it is: one whose making was interrupted, whose
    repository is gone or whose files were changed would be measured as something that it is not."""
    if not (folder / ".git").exists() or _git(folder, "rev-parse", "HEAD") != sha:
        return False
    return _git(folder, "status", "--porcelain", "--untracked-files=no") == ""


def packages_key(root: Path) -> str:
    """What decides a build's packages: its requirements, its pins, and the Python. Raises UserError for a
    checkout that names no packages."""
    path, pins = root / "pyproject.toml", root / "constraints.txt"
    try:
        needed = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: no list of packages ({error!r}); name a commit that can be built") from None
    text = pins.read_text(encoding="utf-8") if pins.exists() else ""
    return digest([needed, text, list(sys.version_info[:2])])


def _python_for(build: Path, root: Path, cache: Path) -> Path:
    """This Python where the packages are the same, else one of an environment made for them."""
    key = packages_key(build)
    if key == packages_key(root):
        return Path(sys.executable)
    folder = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        python = folder / "bin" / "python"
        # Where the Python it was made of was removed, the environment's is a link to nothing.
        if not ((folder / ".ready").exists() and python.exists()):
            _install(build, folder)
            (folder / ".ready").touch()
    return python


def _install(build: Path, folder: Path) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pins = ["-c", str(build / "constraints.txt")] if (build / "constraints.txt").exists() else []
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *pins, str(build)]):
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"the packages of {build} could not be installed into {folder}: {last}")


def _git(root: Path, *command: str) -> str | None:
    """What git prints, or None when it fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
