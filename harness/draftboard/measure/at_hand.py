"""Where a target's files lie on this machine already, for what may fetch nothing."""

from __future__ import annotations

from pathlib import Path

from draftboard.measure.embedded import EMBEDDED_ID, embedded_folder, is_complete
from draftboard.measure.loading import load_tokenizer


def at_hand(name: str, revision: str | None = None) -> str | None:
    """The folder with configuration and tokenizer of the target called `name`; None where they would have to
    be fetched or made first."""
    if name == EMBEDDED_ID:
        folder = embedded_folder()
        return str(folder) if is_complete(folder) else None
    return name if Path(name).is_dir() else _cached(name, revision)


def _cached(name: str, revision: str | None) -> str | None:
    """What an earlier run has fetched from the hub, where that is enough to turn text into ids."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = snapshot_download(name, revision=revision, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    whole = (Path(found) / "config.json").is_file() and load_tokenizer(found) is not None
    return found if whole else None
