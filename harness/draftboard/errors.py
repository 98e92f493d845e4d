"""The one error type for a user's mistake and the words of its messages; the line on a fault of our own."""

from __future__ import annotations

import difflib
import errno
import os
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

SOME_FAILED = 6
"""Exit code of a run of which some arms or tasks failed; the others are stored."""

INTERRUPTED = 130
"""Exit code of an interrupted command, as shells number it; what was measured is kept."""

INTERNAL = 70
"""Exit code of a fault in draftboard itself, as BSD's sysexits.h numbers it: no verdict of any command."""


class UserError(Exception):
    """A mistake the user can mend: one line that says what was wrong, what was found and what to do.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    exit_code = 2


class CandidateFailed(UserError):
    """A candidate could not be measured where its base could: no pass, and no mistake of a command."""

    exit_code = 1


def unknown(kind: str, found: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest known name.

    >>> str(unknown("task", "chatt", ["chat", "code"], "tasks/"))
    "task 'chatt' not found in tasks/; did you mean 'chat'? (have: chat, code)"
    """
    names = sorted(known)
    place = f" in {where}" if where else ""
    hint = suggestion(found, names)
    return UserError(f"{kind} {found!r} not found{place}{hint} (have: {', '.join(names) or 'none'})")


def suggestion(found: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the nearest known name, or nothing where none is near."""
    near = difflib.get_close_matches(found, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""What the system says where nothing can be written, whatever the call: the user's to mend."""

_ABOUT_A_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}
)
"""What it says of a place that cannot hold a file or may not be read: the user's to mend if it names one.
Without a name it is about another call, such as one on a process, and that call was ours."""


def file_trouble(error: Exception) -> str | None:
    """One line on a place that the system refuses to read or write; None for any other error."""
    if not isinstance(error, OSError):
        return None
    named = isinstance(error.filename, str | bytes | os.PathLike)
    if error.errno not in _NO_ROOM and not (named and error.errno in _ABOUT_A_PLACE):
        return None
    place = f"{os.fsdecode(error.filename)}: " if named else ""
    return f"{place}{error.strerror}; name another place, or make room and rights there"


def make_folder(folder: Path, remedy: str) -> None:
    """Makes a folder that something will be written into. Raises UserError with `remedy`, what to do, where
    that cannot be: before the hours whose outcome it is for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made a folder: {error.strerror}; {remedy}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written to; allow it, or {remedy}")


def report_fault(error: Exception) -> str:
    """One line on an error that nobody foresaw; its traceback goes into a file in the temporary folder, and
    where none can be written, below the line."""
    trace = "".join(traceback.format_exception(error))
    words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    try:
        number, path = tempfile.mkstemp(prefix="draftboard-fault-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
    except OSError:
        return f"a fault in draftboard itself: {words}\n{trace.rstrip()}"
    return f"a fault in draftboard itself: {words}; please report it with {path}"
