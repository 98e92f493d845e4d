"""Published figures: what others measured, as data, with the setting they measured it in.

```toml
title = "Some paper, table 1"
source = "arXiv 0000.00000, table 1"
second_hand = false              # true: the source reports what was not read at first hand

[common]                         # fields of `Published` that all figures of the file share
metric = "acceptance_length"
counted = "as here: pooled over rounds, the target's token included"

[datasets.GSM8K]                 # every data set that figures name; a task of this project where it is one
[datasets.MT-Bench]
task = "chat"
turns = 1

[[figures]]                      # fields that these figures share, and their values by data set
target = "some/model"
drafter = "lookup"
values = { GSM8K = 1.5, MT-Bench = 1.2 }
```

A field that a source does not state is left out and is None: it is unknown, not the default.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftboard.errors import UserError, unknown
from draftboard.record.codec import from_json
from draftboard.record.records import Json

PUBLISHED = Path(__file__).resolve().parents[2] / "published"
"""The published figures of the checkout that this code belongs to."""

Thinking = Literal["on", "off", "target's default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published figure and its setting. None: the source does not say."""

    value: float
    counted: str
    """How the source counts, in words."""
    drafter: str
    """Name of the module that runs the method."""
    title: str
    source: str
    second_hand: bool
    dataset: str
    metric: str | None = None
    """Name of the metric here that counts in the same way; None where none does."""
    target: str | None = None
    """Hub id."""
    checkpoint: str | None = None
    """Hub id of the drafter's weights."""
    task: str | None = None
    """Name of the task with these prompts; None where there is none."""
    turns: int | None = None
    """Turns of each conversation that were asked."""
    thinking: Thinking | None = None
    temperature: float | None = None
    k: int | None = None
    """Drafts a round: a chain's, without anchor and bonus."""
    mode: Literal["chain", "tree"] | None = None
    engine: str | None = None
    device: str | None = None
    batch: int | None = None
    """Sequences at a time."""
    dtype: str | None = None
    max_new_tokens: int | None = None
    qualifier: str | None = None
    """What the source says before the value, such as `up to`: then it is no measurement of one setting."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    title: str
    source: str
    second_hand: bool
    figures: tuple[dict[str, Json], ...]
    datasets: dict[str, dict[str, Json]]
    common: dict[str, Json]


def load_published(folder: Path = PUBLISHED) -> tuple[Published, ...]:
    """All figures of the TOML files in a folder, in the order of the files' names.

    Raises UserError naming file and key for an unknown key, a wrong type, a missing field or a data set
    that the file does not list.
    """
    return tuple(one for path in sorted(folder.glob("*.toml")) for one in _read(path))


def _read(path: Path) -> list[Published]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"published figures {path} cannot be read: {error}") from None
    file = from_json(_File, {"common": {}, "datasets": {}, **data}, str(path))
    return [
        one for i, table in enumerate(file.figures) for one in _figures(file, table, f"{path}: figures[{i}]")
    ]


def _figures(file: _File, table: dict[str, Json], where: str) -> list[Published]:
    """One figure for each data set that the table has a value for."""
    values = table.get("values")
    if not isinstance(values, dict) or not values:
        raise UserError(
            f"{where}: expected values by data set, such as values = {{ A = 1.0 }}, found {values!r}"
        )
    own = {name: value for name, value in table.items() if name != "values"}
    shared = {"title": file.title, "source": file.source, "second_hand": file.second_hand}
    found = []
    for dataset, value in values.items():
        if dataset not in file.datasets:
            raise unknown("data set", dataset, file.datasets, where)
        fields = {
            **shared,
            **file.common,
            **file.datasets[dataset],
            **own,
            "dataset": dataset,
            "value": value,
        }
        found.append(from_json(Published, fields, f"{where}: {dataset}"))
    return found
