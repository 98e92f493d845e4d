"""Names made from what they name: the same facts give the same id on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from draftboard.record.codec import to_json


def digest(facts: Any, length: int = 12) -> str:
    """The first hex digits of the SHA-256 of some facts' canonical JSON."""
    text = json.dumps(to_json(facts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
