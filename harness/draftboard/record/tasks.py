"""Tasks: what the target is asked. A task is a folder with `task.toml` and `prompts.jsonl`."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json
from draftboard.record.readers import Prompt, read_dataset, read_own_file, read_task_rows, read_text

__all__ = ["Prompt", "Settings", "Task", "list_tasks", "load_task"]

Template = Literal["target", "raw"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A task's `task.toml`."""

    title: str
    version: int
    """Raised by hand when old figures shall not meet new ones; part of the hash."""
    licence: str
    origin: str
    analysis: str
    """What the task shows and what it does not."""
    template: Template
    """`target` for the target's own chat template, `raw` for the bare text."""
    turns: int
    """The first turns of every conversation that are asked."""
    system_prompt: str | None = None
    """None adds no system message; a target's template may still write its own."""
    thinking: bool | None = None
    """The template's thinking flag; None leaves it at the target's default."""


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts and how they are put. `sha256` covers the prompts and every setting that changes a result."""

    name: str
    title: str
    version: int
    licence: str
    origin: str
    analysis: str
    template: Template
    system_prompt: str | None
    thinking: bool | None
    prompts: tuple[Prompt, ...]
    sha256: str

    def sample(self, limit: int | None, seed: int) -> tuple[Prompt, ...]:
        """The first `limit` prompts of a seeded order, all of them for None or where there are fewer.

        The order deals from the categories in turn, so every beginning of it is spread over them as evenly
        as they allow, and a larger sample begins with the smaller one. Seed, ids and categories decide it.
        """
        if limit is not None and limit <= 0:
            raise UserError(
                f"task {self.name!r}: a limit of {limit} prompts measures nothing; give 1 or more"
            )
        return _dealt(self.prompts, seed)[:limit]


def list_tasks(root: Path) -> tuple[str, ...]:
    """Names of the tasks under `root`: the folders of `tasks/`."""
    folder = root / "tasks"
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; run in a checkout or name one with --root")
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."))


def task_name(name_or_path: str) -> str:
    """The name of the task that `load_task` makes of this; reads nothing."""
    if not name_or_path.startswith("hf:"):
        return Path(name_or_path).name
    dataset = Path(name_or_path.removeprefix("hf:").partition("?")[0].partition(":")[0])
    return f"hf-{dataset.name}"


def load_task(name_or_path: str, root: Path) -> Task:
    """A task by its name in `root/tasks`, by the path of its folder, or made of a user's own prompts:
    a `.jsonl` file (`readers.read_own_file`) or an `hf:` address (`readers.read_dataset`).

    Raises UserError naming file, line and key of what is wrong.
    """
    name, path = task_name(name_or_path), Path(name_or_path)
    if name_or_path.startswith("hf:"):
        return _own(name, name_or_path, read_dataset(name_or_path))
    if path.suffix == ".jsonl":
        return _own(name, name, read_own_file(path))
    if len(path.parts) > 1:
        return _from_folder(path)
    if name_or_path not in list_tasks(root):
        raise unknown("task", name_or_path, list_tasks(root), f"{root / 'tasks'}/")
    return _from_folder(root / "tasks" / name_or_path)


def _from_folder(folder: Path) -> Task:
    file = folder / "task.toml"
    try:
        settings = from_json(Settings, tomllib.loads(read_text(file)), str(file))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: not TOML: {error}") from error
    if settings.turns < 1:
        raise UserError(f"{file}.turns: expected 1 or more, found {settings.turns}")
    return _task(folder.name, settings, read_task_rows(folder / "prompts.jsonl"))


def _own(name: str, origin: str, prompts: tuple[Prompt, ...]) -> Task:
    settings = Settings(
        title=name,
        version=1,
        licence="not stated",
        origin=origin,
        analysis="Prompts of the user's own.",
        template="target",
        turns=max(len(prompt.turns) for prompt in prompts),
    )
    return _task(name, settings, prompts)


def _task(name: str, settings: Settings, rows: tuple[Prompt, ...]) -> Task:
    prompts = tuple(Prompt(row.id, row.category, row.turns[: settings.turns]) for row in rows)
    return Task(
        name=name,
        title=settings.title,
        version=settings.version,
        licence=settings.licence,
        origin=settings.origin,
        analysis=settings.analysis.strip(),
        template=settings.template,
        system_prompt=settings.system_prompt,
        thinking=settings.thinking,
        prompts=prompts,
        sha256=_hash(settings, prompts),
    )


def _hash(settings: Settings, prompts: tuple[Prompt, ...]) -> str:
    rows = [[prompt.id, prompt.category, list(prompt.turns)] for prompt in prompts]
    content = [settings.version, settings.template, settings.system_prompt, settings.thinking, rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _dealt(prompts: tuple[Prompt, ...], seed: int) -> tuple[Prompt, ...]:
    def rank(text: str) -> bytes:
        return hashlib.sha256(f"{seed}:{text}".encode()).digest()

    hands: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: rank(prompt.id)):
        hands.setdefault(prompt.category, []).append(prompt)
    turns = zip_longest(*(hands[category] for category in sorted(hands, key=rank)))
    return tuple(prompt for turn in turns for prompt in turn if prompt is not None)
