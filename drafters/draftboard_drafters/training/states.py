"""The target's states on its own replies, computed once and kept on disk for every method and epoch.

A store is a folder that only grows: `rows.jsonl` says where each row lies, `ids.i32` holds the tokens and
`states.bf16` the tapped states, T of width H a token. At 4 taps of a 576 wide target a token takes 4.6 kB; a
reader maps the file, so memory holds what the epoch touches. A row is in the store when its line is: what a
killed writer left behind the last line is cut off at the next opening.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftboard.drafter import FINAL_NORM, UserError
from draftboard.errors import make_folder
from draftboard.measure.target import TargetModel


@dataclass(frozen=True, slots=True)
class Row:
    """A text in the store: `length` tokens from `start`, the first `prompt` of them not the target's own."""

    start: int
    prompt: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What the states of a store are; a store of another layout cannot be continued."""

    target: str
    taps: tuple[int, ...]
    width: int
    revision: str | None = None
    """Of the target's weights; None where it is not known, as in stores of before it was kept."""

    def follows(self, held: Mapping[str, Any]) -> bool:
        """Whether a store that says `held` can be gone on with."""
        own = json.loads(json.dumps(asdict(self)))
        same = {name: value for name, value in held.items() if name != "revision"}
        revisions = {held.get("revision"), own.pop("revision")} - {None}
        return same == own and len(revisions) <= 1


def taps_of(num_layers: int) -> tuple[int, ...]:
    """The states kept: EAGLE-3's reference taps (arXiv 2503.01840, its code) and the last, normed state.

    Raises UserError for a target that is too shallow for them.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    if not 2 < taps[1] < taps[2]:
        raise UserError(
            f"a target of {num_layers} layers is too shallow for the taps {taps}, which must rise;"
            " it needs at least 7"
        )
    return (*taps, FINAL_NORM)


def layout_of(target: str, num_layers: int, width: int, revision: str | None = None) -> Layout:
    """The layout of the states that training reads. Raises UserError for a target that is too shallow."""
    return Layout(target, taps_of(num_layers), width, revision)


class Store:
    """A folder of texts and their states. One writer at a time, any number of readers."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        """Opens or begins a store. Raises UserError for one of another target or other taps."""
        self.folder, self.layout = folder, layout
        make_folder(folder, "choose another --work")
        said = folder / "layout.json"
        if not said.exists():
            new = folder / "layout.new"
            new.write_text(json.dumps(asdict(layout)) + "\n")
            new.replace(said)
        found = _read(said)
        if not (isinstance(found, dict) and layout.follows(found)):
            raise UserError(
                f"{folder} holds states of {found}, not of {asdict(layout)}; use another folder, and"
                " where the target itself changed, other replies too"
            )
        self.rows = _whole_rows(folder / "rows.jsonl")
        self.tokens = self.rows[-1].start + self.rows[-1].length if self.rows else 0
        self.ids_file, self.states_file = folder / "ids.i32", folder / "states.bf16"
        self._tidy = False

    def append(self, ids: Sequence[int], prompt: int, states: Tensor) -> None:
        """Adds a text and its states [n, T, H]."""
        if not self._tidy:
            self._cut_off()
        with self.ids_file.open("ab") as file:
            file.write(torch.tensor(ids, dtype=torch.int32).numpy().tobytes())
        with self.states_file.open("ab") as file:
            file.write(states.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
        row = Row(self.tokens, prompt, len(ids))
        with (self.folder / "rows.jsonl").open("a") as lines:
            lines.write(json.dumps(asdict(row)) + "\n")
        self.rows.append(row)
        self.tokens += len(ids)

    def _cut_off(self) -> None:
        """Removes what a killed writer left behind the last whole row. Readers do not, so that they may read
        while another process writes."""
        token = 2 * len(self.layout.taps) * self.layout.width
        lines = [json.dumps(asdict(row)) + "\n" for row in self.rows]
        for file, size in (
            (self.folder / "rows.jsonl", sum(map(len, lines))),
            (self.ids_file, 4 * self.tokens),
            (self.states_file, token * self.tokens),
        ):
            file.touch()
            if file.stat().st_size < size:
                raise UserError(
                    f"{file} is shorter than rows.jsonl beside it says; remove {self.folder} and make it anew"
                )
            os.truncate(file, size)
        self._tidy = True

    def ids(self) -> Tensor:
        """All tokens, int32 [N]."""
        return _mapped(self.ids_file, torch.int32, (self.tokens,))

    def states(self) -> Tensor:
        """All states, bfloat16 [N, T, H]."""
        taps, width = len(self.layout.taps), self.layout.width
        return _mapped(self.states_file, torch.bfloat16, (self.tokens, taps, width))


def _mapped(file: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    size = torch.Size(shape).numel()
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    try:
        return torch.from_file(str(file), shared=False, size=size, dtype=dtype).view(shape)
    except RuntimeError as error:
        raise _damaged(file, error) from None


def _whole_rows(file: Path) -> list[Row]:
    """The rows of the complete lines."""
    text = file.read_text() if file.exists() else ""
    try:
        return [Row(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    except (ValueError, TypeError) as error:
        raise _damaged(file, error) from None


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(
        f"{file} cannot be read ({reason}); remove {file.parent}: states for training are made again by"
        " `draftboard train data`, those of an evaluation by itself"
    )


@torch.inference_mode()
def fill(store: Store, target: TargetModel, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Appends pairs of prompt and reply with the target's states on them. Returns the tokens added."""
    added = 0
    for prompt, reply in texts:
        ids = [*prompt, *reply]
        target.begin(store.layout.taps)
        _, states = target.prefill(torch.tensor(ids, device=target.device))
        store.append(ids, len(prompt), states.cpu())
        added += len(ids)
    return added
