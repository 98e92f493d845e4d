"""Names made from what they name: the same facts give the same id on every machine."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from draftboard.record.codec import to_json

_FOLDERS = re.compile(r"(?P<before>^|[=,\s'\"(])~?/(?:[^/=,\s'\"]+/)*(?=[^/=,\s'\"])")


def without_folders(text: str) -> str:
    """A text in which absolute paths are cut down to their last name: records are published.

    >>> without_folders("run --target /home/me/models/tiny --option model=~/draft")
    'run --target tiny --option model=draft'
    """
    return _FOLDERS.sub(r"\g<before>", text)


def digest(facts: Any, length: int = 12) -> str:
    """The first hex digits of the SHA-256 of some facts' canonical JSON."""
    text = json.dumps(to_json(facts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
