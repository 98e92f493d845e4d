"""Token maps: the ids that a drafter with its target's head is limited to, so that it reads fewer rows of it.

Most of what is said comes from a small part of a vocabulary, and the head costs more than a small drafter's
layers: FR-Spec (arXiv 2502.14856) keeps the most frequent ids, FastMTP (arXiv 2509.18362) does so for an MTP
module. A word outside is never drafted; the target says it itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from draftboard.drafter import Target, UserError
from draftboard_drafters.checkpoints.cards import CARD, read_json_card

TOKEN_MAP = "token_map.json"
"""A JSON list of ids, beside the weights that it is for."""
ALL, OWN = "all", "own"
_CHUNK = 64
"""Unit vectors at a time: a product with the whole vocabulary is kept for each."""
_LARGE = 1024.0
"""A power of two, by which no number is rounded."""


def write_token_map(folder: Path, ids: Iterable[int]) -> None:
    """Writes a map into a folder."""
    (folder / TOKEN_MAP).write_text(json.dumps(list(ids), separators=(",", ":")) + "\n")


def token_map_of(word: str, checkpoint: str, target: Target) -> Tensor | None:
    """The ids that an option asks for, as `read_token_map` gives them; None for all.

    `word` is `all`, `own` for the map beside a checkpoint's weights, or a path. Raises UserError as
    `read_token_map` does, and for a checkpoint without a map.
    """
    if word == ALL:
        return None
    if word == OWN and not (Path(checkpoint).expanduser() / TOKEN_MAP).is_file():
        raise UserError(f"{checkpoint} has no {TOKEN_MAP}; --option token_map=all drafts any id")
    return read_token_map(checkpoint if word == OWN else word, target)


def read_token_map(path: str, target: Target) -> Tensor:
    """The ids of a map, int64 [n], ascending; `path` is a file, or a folder with `TOKEN_MAP`.

    Raises UserError for a file that is not there or is no list of different ids of the target.
    """
    file = Path(path).expanduser()
    file = file / TOKEN_MAP if file.is_dir() else file
    ids = _listed(file)
    odd = [id for id in ids if not 0 <= id < target.vocab_size]
    if odd:
        raise UserError(f"token map {file}: {odd[0]} is none of the {target.vocab_size} ids of {target.id!r}")
    found = torch.tensor(sorted(ids))
    _check_card(file, ids_sha256(found))
    return found.to(target.device)


def own_map(folder: Path) -> str | None:
    """The map beside a checkpoint's weights in words, or what is wrong with it; None where there is none."""
    file = folder.expanduser() / TOKEN_MAP
    if not file.exists():
        return None
    try:
        ids = _listed(file)
        _check_card(file, ids_sha256(torch.tensor(sorted(ids))))
    except UserError as error:
        return f"not to be used: {error}"
    return f"{len(ids)} ids beside the weights; token_map={OWN} drafts no others"


def _listed(file: Path) -> list[int]:
    """The ids of a file. Raises UserError where it is no list of different ids."""
    try:
        ids = json.loads(file.read_text())
    except OSError as error:
        raise UserError(
            f"token map {file}: {error.strerror}; name a JSON list of ids, or {OWN} or {ALL}"
        ) from None
    except ValueError as error:
        raise UserError(f"token map {file} is no JSON ({error}); it must be a list of token ids") from None
    if not isinstance(ids, list) or not ids or {type(id) for id in ids} != {int}:
        raise UserError(f"token map {file}: expected a list of token ids, found {ids!r:.40}")
    if (different := len(set(ids))) < len(ids):
        raise UserError(
            f"token map {file} names an id twice: {different} of its {len(ids)} ids are different"
        )
    return ids


def ids_sha256(ids: Tensor) -> str:
    """Of ids, int64 [n], ascending."""
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()


def _check_card(file: Path, found: str) -> None:
    """The map beside weights that were trained here must be the one that their card speaks of."""
    if file.name != TOKEN_MAP or not (file.parent / CARD).is_file():
        return
    stated = read_json_card(file.parent / CARD).get("vocabulary")
    if stated not in (None, found):
        raise UserError(
            f"{file} holds ids of sha256 {found[:12]}, and {CARD} beside it speaks of {stated!s:.12};"
            " fetch the folder again or train it anew"
        )


def head_rows(target: Target, ids: Tensor) -> Tensor:
    """Rows of the target's head [n, H] in its dtype: unit vectors through the head give them exactly, since
    every sum has one term. Raises UserError for a head that is more than a product, such as a capped one."""
    units = torch.eye(target.hidden_size, dtype=target.dtype, device=target.device)
    some = units[:_CHUNK]
    if target.head(0 * some).any() or not torch.equal(_LARGE * target.head(some), target.head(_LARGE * some)):
        raise UserError(f"the head of {target.id!r} is more than a product; leave the token map out")
    return torch.cat([target.head(some)[:, ids] for some in torch.split(units, _CHUNK)]).T.contiguous()
