"""Keeps a library's chatter off the terminal where it writes past Python's own streams."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_ERRORS = 2
"""The file descriptor of standard error, which is what compiled code writes to."""


@contextmanager
def without_lines(beginning: str) -> Iterator[None]:
    """Within, standard error is held back; afterwards its lines follow, save those with this beginning."""
    if sys.stderr is None:  # closed by whoever called
        yield
        return
    sys.stderr.flush()
    kept = os.dup(_ERRORS)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _ERRORS)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _ERRORS)
            os.close(kept)
            held.seek(0)
            lines = [line for line in held if not line.startswith(beginning.encode())]
            os.write(_ERRORS, b"".join(lines))
