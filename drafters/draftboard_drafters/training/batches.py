"""Texts of similar length side by side, so that one step multiplies many rows and pads few."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard_drafters.training.states import Row, Store

HELD_OUT = 32
"""One text in so many judges a training and is not trained on."""


@dataclass(frozen=True, slots=True)
class Text:
    """A row of one of the stores."""

    store: int
    row: Row


@dataclass(frozen=True, slots=True)
class Batch:
    """B texts padded at their ends to T tokens.

    `ids` int64 [B, T], `states` float32 [B, T, taps, H], `prompts` and `lengths` int64 [B].
    """

    ids: Tensor
    states: Tensor
    prompts: Tensor
    lengths: Tensor

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.lengths.sum())

    def weights(self, prompt_weight: float) -> Tensor:
        """[B, T]: how much the prediction made at each place counts; 0 on padding.

        The state at t predicts token t+1, so the last token of the prompt predicts the reply's first.
        """
        places = torch.arange(self.ids.shape[1])[None]
        own = places >= self.prompts[:, None] - 1
        inside = places < self.lengths[:, None]
        return torch.where(own, 1.0, prompt_weight) * inside

    def starts(self, k: int) -> Tensor:
        """bool [B, T]: tokens of a reply that k more follow, from which a chain of k drafts can be judged."""
        places = torch.arange(self.ids.shape[1])[None]
        return (places >= self.prompts[:, None]) & (places + k < self.lengths[:, None])


class Texts:
    """The texts of several stores, a fixed share of them held out."""

    def __init__(self, stores: Sequence[Store], *, held_out: int) -> None:
        """Holds out one text in `held_out`, by the hash of its tokens: stores that grow keep the split."""
        self.ids = [store.ids() for store in stores]
        self.states = [store.states() for store in stores]
        texts = [Text(i, row) for i, store in enumerate(stores) for row in store.rows]
        kept_back = [self._hash(text) % held_out == 0 for text in texts]
        self.train = [text for text, back in zip(texts, kept_back, strict=True) if not back]
        self.held_out = [text for text, back in zip(texts, kept_back, strict=True) if back]
        self.taps = stores[0].layout.taps

    def tokens(self, text: Text) -> Tensor:
        """int32 [n]"""
        return self.ids[text.store][text.row.start : text.row.start + text.row.length]

    def present(self, vocab_size: int) -> Tensor:
        """bool [V]: which ids some text contains, held out or not."""
        found = torch.zeros(vocab_size, dtype=torch.bool)
        for ids in self.ids:
            found[ids.long()] = True
        return found

    def sha256(self) -> str:
        """Of the tokens that are trained on, whatever the texts' order."""
        return hashlib.sha256(
            "".join(sorted(f"{self._hash(text):016x}" for text in self.train)).encode()
        ).hexdigest()

    def _hash(self, text: Text) -> int:
        return int.from_bytes(hashlib.sha256(self.tokens(text).numpy().tobytes()).digest()[:8])

    def groups(self, texts: Sequence[Text], rows: int, seed: int) -> list[list[Text]]:
        """Every text once, in groups of similar length of about `rows` tokens each, in a seeded order."""
        dice = random.Random(seed)
        groups, group = list[list[Text]](), list[Text]()
        for text in sorted(texts, key=lambda text: (text.row.length, dice.random())):
            if group and (len(group) + 1) * text.row.length > rows:
                groups.append(group)
                group = []
            group.append(text)
        groups += [group] if group else []
        dice.shuffle(groups)
        return groups

    def batch(self, texts: Sequence[Text]) -> Batch:
        """The texts as one batch."""
        longest = max(text.row.length for text in texts)
        width = self.states[0].shape[-1]
        ids = torch.zeros(len(texts), longest, dtype=torch.int64)
        states = torch.zeros(len(texts), longest, len(self.taps), width)
        for i, text in enumerate(texts):
            row, place = text.row, slice(text.row.start, text.row.start + text.row.length)
            ids[i, : row.length] = self.ids[text.store][place]
            states[i, : row.length] = self.states[text.store][place]
        prompts = torch.tensor([text.row.prompt for text in texts])
        lengths = torch.tensor([text.row.length for text in texts])
        return Batch(ids, states, prompts, lengths)
