"""The id that stands for a word to be guessed in the blocks of DFlash and DSpark: one that no text contains,
so that its embedding means nothing else."""

from __future__ import annotations

from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.loading import load_tokenizer


def mask_of(source: str, present: Tensor, asked: int | None = None) -> int:
    """The mask's id for the target whose tokenizer is at `source`: `asked`, else the highest of the
    tokenizer's special tokens that is free, else the highest free id.

    `present` bool [V] says which ids the training texts contain. Raises UserError for an id that is not free,
    and where none is.
    """
    free: list[int] = (~present).nonzero()[:, 0].tolist()
    if not free:
        raise UserError(f"the training texts contain all {len(present)} ids of the target; no mask is left")
    special = [id for id in _special(source) if id in free]
    best = max(special or free)
    if asked is not None and asked not in free:
        raise UserError(
            f"the mask's id must be one that no training text contains; {asked} is not, {best} is"
        )
    return best if asked is None else asked


def _special(source: str) -> list[int]:
    tokens = getattr(load_tokenizer(source, None), "added_tokens_decoder", {})
    return [id for id, token in tokens.items() if token.special]
