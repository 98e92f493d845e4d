"""What was asked, where the checkout has the very task that a run put to its target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from draftboard.errors import UserError
from draftboard.record.records import TaskRef
from draftboard.record.tasks import list_tasks, load_task

Asked = Mapping[str, tuple[str, ...]]
"""The turns of a prompt by its id."""


def asked(about: TaskRef, root: Path) -> Asked:
    """The prompts of a run's task; empty where `root` has no such task or one of other content."""
    try:
        # What a path or an address names is no task of the checkout.
        task = load_task(about.name, root) if about.name in list_tasks(root) else None
    except UserError:
        return {}
    if task is None or task.sha256 != about.sha256:
        return {}
    return {prompt.id: prompt.turns for prompt in task.prompts}
