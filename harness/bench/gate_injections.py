"""Builds that are worse on purpose, by a known amount: copies of a commit with one edit in their sources.

    slow    decoding's wall time is longer by a share: before each round's commit it sleeps that share of
            what the round took so far (the time belongs to no span, as in `inject.py`)
    blind   no round drafts more than a few tokens, so that fewer are accepted; the output stays

Each edit must find its place in the source, or the build is refused: an injection that changes nothing would
make the gate look blind.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from draftboard.measure.builds import Build

CLOCK = Path("harness/draftboard/measure/clock.py")
DECODE = Path("harness/draftboard/measure/decode.py")

COPIED = ("harness", "drafters/draftboard_drafters", "tasks", "pyproject.toml")
"""What the suite `gate` needs of a checkout; trained weights are not in it."""

_SLOW = """        if name == "draft":
            self._injected = time.perf_counter()
        if name == "commit":
            time.sleep({share} * (time.perf_counter() - self._injected))
        return Span(self._cuda)
"""


def slow(build: Build, share: float, folder: Path) -> Build:
    """The build with every round longer by `share`."""
    edit = ("        return Span(self._cuda)\n", _SLOW.format(share=share))
    return _edited(build, folder, CLOCK, [edit])


def blind(build: Build, most: int, folder: Path) -> Build:
    """The build whose rounds draft `most` tokens at most, whatever K says."""
    line = "            limit = cap - len(ids) - 1\n"
    return _edited(build, folder, DECODE, [(line, f"            limit = min({most}, cap - len(ids) - 1)\n")])


def _edited(build: Build, folder: Path, file: Path, edits: list[tuple[str, str]]) -> Build:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = subprocess.run(
        ["git", "-C", str(build.root), "ls-files", "-z", *COPIED],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, files.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build.root / name, folder / name)
    text = (folder / file).read_text(encoding="utf-8")
    for before, after in edits:
        if text.count(before) != 1:
            raise SystemExit(f"{file}: the place to inject into occurs {text.count(before)} times, not once")
        text = text.replace(before, after)
    (folder / file).write_text(text, encoding="utf-8")
    return replace(build, name="candidate", root=folder)
