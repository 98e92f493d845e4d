"""The one error type for a user's mistake, and the words of its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: one line that says what was wrong, what was found and what to do.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    exit_code = 2


def unknown(kind: str, found: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest known name.

    >>> str(unknown("task", "chatt", ["chat", "code"], "tasks/"))
    "task 'chatt' not found in tasks/; did you mean 'chat'? (have: chat, code)"
    """
    names = sorted(known)
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    place = f" in {where}" if where else ""
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return UserError(f"{kind} {found!r} not found{place}{hint} (have: {', '.join(names) or 'none'})")
