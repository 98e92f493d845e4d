"""Prompts from files and datasets: a task's own rows, read strictly, and the layouts of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json
from draftboard.record.records import Json

_COLUMNS = ("prompt", "id", "category")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation: the user's turns in order. The replies between them are the target's own."""

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a task's `prompts.jsonl`. What is not in `Prompt` is there for the reader."""

    id: str
    category: str
    turns: tuple[str, ...]
    reference: Json = None
    """An answer, where the source gives one. Nothing is scored against it."""
    licence: str | None = None
    """The row's own licence where rows of one task differ."""
    source: str | None = None


def read_task_rows(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a task folder. Unknown keys are refused, so that a misspelt one cannot be lost."""
    return _collect(path, _strict, _lines(path))


def read_own_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a user's JSON Lines file.

    Rows of this project (`id`, `category`, `turns`), of FastChat and Spec-Bench (`question_id`, `category`,
    `turns`), or bare `turns` or `prompt`. Other keys are left unread.

    A row without an id is called by its line number, one without a category `all`.
    """
    return _collect(path, _lenient, _lines(path))


def read_dataset(address: str) -> tuple[Prompt, ...]:
    """The prompts of a dataset that the `datasets` library can load, from the hub or from a folder.

    `address` is `hf:<dataset id>[:config][:split]?prompt=<column>[&id=<column>][&category=<column>]`. A
    single part after the id is the split; the split may be left out where there is only one. The prompt's
    column holds a text, or the list of a conversation's user turns.
    """
    place, _, query = address.removeprefix("hf:").partition("?")
    columns = dict(parse_qsl(query))
    for key in columns:
        if key not in _COLUMNS:
            raise unknown("mapping", key, _COLUMNS, address)
    if "prompt" not in columns:
        raise UserError(f"{address}: no column for the prompt; add ?prompt=<column>")
    rows = _split(address, place)
    for column in columns.values():
        if column not in rows.column_names:
            raise unknown("column", column, rows.column_names, address)
    mapped = ({key: row[column] for key, column in columns.items()} for row in rows)
    return _collect(address, _lenient, enumerate(mapped, 1))


def _split(address: str, place: str) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    name, *parts = place.split(":")
    if not name or len(parts) > 2:
        raise UserError(f"{address}: expected hf:<dataset id>[:config][:split]?prompt=<column>")
    config, split = [None] * (2 - len(parts)) + [part or None for part in parts]
    try:
        splits = load_dataset(name, config)
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise UserError(f"{address}: the dataset cannot be loaded: {reason}") from error
    if split is None and len(splits) > 1:
        raise UserError(f"{address}: which split? add :<split> (have: {', '.join(sorted(splits))})")
    split = split or next(iter(splits))
    if split not in splits:
        raise unknown("split", split, splits, name)
    return splits[split]


def read_text(path: Path) -> str:
    """A file's text. Raises UserError where it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error


def _lines(path: Path) -> Iterator[tuple[int, Json]]:
    # Only "\n" ends a row: str.splitlines would also cut at separators that JSON leaves bare inside a text.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from error


def _collect(
    origin: Path | str, read: Callable[[Json, str, int], Row], rows: Iterable[tuple[int, Json]]
) -> tuple[Prompt, ...]:
    seen: dict[str, int] = {}
    prompts = []
    for number, data in rows:
        where = f"{origin}:{number}"
        row = read(data, where, number)
        if not row.turns or not all(turn.strip() for turn in row.turns):
            raise UserError(f"{where}: a prompt without text; give every turn some")
        if row.id in seen:
            raise UserError(
                f"{where}: the id {row.id!r} is already that of line {seen[row.id]}; ids are unique"
            )
        seen[row.id] = number
        prompts.append(Prompt(row.id, row.category, row.turns))
    if not prompts:
        raise UserError(f"{origin}: no prompts; one JSON object a line is expected")
    return tuple(prompts)


def _strict(data: Json, where: str, _number: int) -> Row:
    return from_json(Row, data, where)


def _lenient(data: Json, where: str, number: int) -> Row:
    keys = set(data) if isinstance(data, dict) else set()
    if not keys & {"turns", "prompt"}:
        found = ", ".join(sorted(keys)) or repr(data)[:40]
        raise UserError(f"{where}: expected a row with 'turns' or 'prompt', found {found}")
    turns = data.get("turns", data.get("prompt"))
    plain = {
        "id": str(data.get("id", data.get("question_id", number))),
        "category": str(data.get("category", "all")),
        "turns": [turns] if isinstance(turns, str) else turns,
    }
    return from_json(Row, plain, where)
