"""Weights that come with this repository, asked for by the word `shipped` instead of a path."""

from __future__ import annotations

import shlex
from pathlib import Path

from draftboard.drafter import Target, UserError
from draftboard.measure.embedded import EMBEDDED_ID

SHIPPED = "shipped"
WEIGHTS = Path(__file__).resolve().parents[2] / "weights"


def slug(target: str) -> str:
    """The name of the folder that holds what was trained for the target of this id. A hub id keeps its owner,
    so that namesakes of two owners do not meet."""
    return target.replace("/", "--")


def train_command(what: str, target: str) -> str:
    """The command that trains `what` for a target, as an error names it."""
    return f"draftboard train {what}" + ("" if target == EMBEDDED_ID else f" --target {shlex.quote(target)}")


def located(path: str, method: str, target: Target) -> str:
    """`path`, or for `shipped` the folder of this method's weights for this target.

    Raises UserError where there are none, with the targets that have some.
    """
    if path != SHIPPED:
        return path
    folder = WEIGHTS / slug(target.id) / method
    if not folder.is_dir():
        known = sorted(found.parent.name for found in WEIGHTS.glob(f"*/{method}"))
        raise UserError(
            f"no shipped weights of {method!r} for target {target.id!r}"
            f" (there are some for: {', '.join(known) or 'none'}); name a folder or hub id, or train them:"
            f" {train_command(method, target.id if '/' in target.id else 'FOLDER')}"
        )
    return str(folder)
