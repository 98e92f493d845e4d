"""A fault of ours ends in a line and a code of its own, never in the code of a verdict."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from draftboard import __main__, cli
from draftboard.errors import INTERNAL, INTERRUPTED, UserError, make_folder
from draftboard.judge.findings import EXIT_CODES
from draftboard.show import tables

ROOT = Path(__file__).resolve().parents[1]


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException, *command: str) -> int | str | None:
    """The exit code of a command whose rendering raises `error`."""

    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(tables, "render", fails)
    monkeypatch.setattr("sys.argv", ["draftboard", "results", *command])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("a\n  b"), "ZeroDivisionError: a b;"),
        (KeyError("k"), "KeyError: 'k';"),
        (AssertionError(), "AssertionError;"),
        (MemoryError("no room"), "MemoryError: no room;"),
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error;"),
        (PermissionError(1, "Not permitted"), "PermissionError: [Errno 1] Not permitted;"),
        (PermissionError(13, "Denied", 7), "PermissionError: [Errno 13] Denied: 7;"),
    ],
)
def test_a_fault_is_one_line_and_its_traceback_a_file(
    error: Exception,
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(monkeypatch, error, "--root", str(folder)) == 70
    (file,) = folder.glob("draftboard-fault-*.txt")
    shown = capsys.readouterr()
    assert shown.err == f"draftboard: a fault in draftboard itself: {words} please report it with {file}\n"
    assert shown.out == ""
    assert "Traceback" in file.read_text() and "in fails" in file.read_text()


def test_where_no_file_can_be_written_the_traceback_follows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    assert ended(monkeypatch, ZeroDivisionError("x"), "--root", str(folder)) == 70
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "draftboard: a fault in draftboard itself: ZeroDivisionError: x"
    assert rest[0].startswith("Traceback") and rest[-1] == "ZeroDivisionError: x"


def test_a_users_mistake_and_an_interrupt_are_no_faults(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, UserError("not so"), "--root", str(folder)) == 2
    assert capsys.readouterr().err == "draftboard: not so\n"
    assert ended(monkeypatch, KeyboardInterrupt(), "--root", str(folder)) == 130
    assert not list(folder.glob("draftboard-fault-*"))


def test_an_interrupt_outside_the_command_line_library_ends_as_one_within(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one while its modules are imported."""
    handled: dict[int, Any] = {}

    def interrupted() -> None:
        handled[signal.SIGTERM](signal.SIGTERM, None)

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    assert caught.value.code == INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"^/proc/none/such cannot be made a folder: .*; ask for another$"):
        make_folder(Path("/proc/none/such"), "ask for another")
    make_folder(folder / "deep" / "down", "ask for another")
    assert (folder / "deep" / "down").is_dir()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"deep cannot be written to; allow it, or ask for another$"):
        make_folder(folder / "deep", "ask for another")


@pytest.mark.parametrize("command", [("results", "--format", "json"), ("site",)])
def test_a_place_that_cannot_be_written_is_a_users_matter(
    command: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "file").write_text("")
    place = folder / "file" / "inside"
    monkeypatch.setattr("sys.argv", ["draftboard", *command, "--out", str(place), "--root", str(ROOT)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(place) in line and "name another place" in line
    assert not list(folder.glob("draftboard-fault-*"))


def test_a_full_disk_is_no_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, OSError(28, "No space left on device"), "--root", str(folder)) == 2
    assert capsys.readouterr().err.startswith("draftboard: No space left on device; ")


@pytest.mark.parametrize("place", ["/a/b", b"/a/b", Path("/a/b")])
def test_a_place_that_is_denied_is_named_whatever_its_type(
    place: object, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, PermissionError(13, "Denied", place), "--root", str(folder)) == 2
    assert capsys.readouterr().err.startswith("draftboard: /a/b: Denied; ")


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_leaves_is_no_verdict(form: str) -> None:
    command = [sys.executable, "-m", "draftboard", "results", "--format", form, "--root", str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (cli.READER_GONE, b"")
    assert cli.READER_GONE == 141


def test_the_code_is_no_other_commands() -> None:
    taken = {*EXIT_CODES.values(), UserError.exit_code, cli.SOME_FAILED, INTERRUPTED, cli.BROKEN_PROMISE}
    assert not {INTERNAL, cli.READER_GONE} & taken


def test_what_is_left_at_the_end_is_not_searched_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    assert ended(monkeypatch, UserError("a mistake")) == UserError.exit_code
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
