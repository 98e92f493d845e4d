"""The law of whole sampled replies, through the decoding loop: the target's own, whatever was guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

import enumeration as en
from draftboard.drafter import Draft
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.sampling import Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from scripted import Scripted, always

CPU = torch.device("cpu")
K = 2
ONE = Sampling(temperature=1.0)


class Memory:
    """As much of a target as the loop needs, over `en.table`; its prompt is one token that it ignores."""

    device, stop_ids = CPU, frozenset[int]()

    def __init__(self, size: int) -> None:
        self.size = size

    def begin(self, taps: tuple[int, ...]) -> None:
        self.text: tuple[int, ...] = ()

    def prepare(self, rows: Iterable[int]) -> None:
        pass

    def prefill(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return en.table(0, (), self.size)[None], torch.empty(1, 0, 1)

    def extend(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = []
        for token in ids.tolist():
            self.text += (token,)
            rows.append(en.table(0, self.text, self.size))
        return torch.stack(rows), torch.empty(len(rows), 0, 1)

    def truncate(self, length: int) -> None:
        self.text = self.text[: length - 1]


class Drawing(Scripted):
    """Draws its guesses from `table`, one after the other, by the run's sampler."""

    def __init__(self, judge: Sampler, size: int) -> None:
        super().__init__(always(), k=K)
        self.judge, self.size = judge, size

    def propose(self, limit: int) -> Draft:
        text, laws = tuple(self.committed[1:]), [torch.empty(0, self.size)]
        for _ in range(min(limit, K)):
            token, law = self.judge.draw(en.table(1, text, self.size)[None])
            assert law is not None
            text, laws = (*text, int(token)), [*laws, law]
        return Draft(torch.tensor(text[len(self.committed) - 1 :], dtype=torch.int64), torch.cat(laws))


def echo(text: list[int]) -> list[int]:
    """Certain guesses: the last token again and again."""
    return text[-1:] * K


Guesses = Iterator[tuple[tuple[en.End, ...], tuple[int, ...], list[en.Vector]]]


def certain_guesses(text: tuple[int, ...], count: int, size: int) -> Guesses:
    """The cells of `echo`: it needs no number."""
    drafted = tuple(echo(list(text))[:count])
    yield (), drafted, list(np.eye(size)[list(drafted)])


def drawn_guesses(text: tuple[int, ...], count: int, size: int) -> Guesses:
    """The cells of `Drawing`."""
    if count == 0:
        yield (), (), []
        return
    law = en.warped(en.table(1, text, size), ONE)
    for end, token in en.pieces(law):
        for ends, drafted, laws in drawn_guesses((*text, token), count - 1, size):
            yield (end, *ends), (token, *drafted), [law, *laws]


def replies(
    guesses: Callable[..., Guesses], text: tuple[int, ...], left: int, size: int
) -> Iterator[en.Cell]:
    """The cells of all rounds until `left` tokens are there."""
    if left == 0:
        yield en.Cell((), ())
        return
    for ends, drafted, q in guesses(text, min(K, left - 1), size):
        p = [en.warped(en.table(0, text + drafted[:i], size), ONE) for i in range(len(drafted) + 1)]
        for cell in en.round_cells(p, q, drafted):
            for rest in replies(guesses, text + cell.tokens, left - len(cell.tokens), size):
                yield en.Cell((*ends, *cell.ends, *rest.ends), cell.tokens + rest.tokens)


@pytest.mark.parametrize(
    ("guesses", "size"), [(certain_guesses, 3), (drawn_guesses, 2)], ids=["certain", "drawn"]
)
def test_law_of_whole_replies_through_the_loop(guesses: Callable[..., Guesses], size: int) -> None:
    judge, target, law = (
        Sampler(ONE, en.Script([])),
        cast(TargetModel, Memory(size)),
        dict[tuple[int, ...], float](),
    )
    drafter = Drawing(judge, size) if guesses is drawn_guesses else Scripted(echo, k=K)
    for end, token in en.pieces(en.warped(en.table(0, (), size), ONE)):
        for cell in replies(guesses, (token,), 3, size):
            whole = en.Cell((end, *cell.ends), (token, *cell.tokens))
            for numbers in zip(*(end.inside() for end in whole.ends), strict=True):
                judge.restart(en.Script(numbers))
                reply = decode(target, drafter, torch.tensor([0]), judge, Clock(CPU), max_new_tokens=4)
                assert reply.token_ids == whole.tokens
            law[whole.tokens] = law.get(whole.tokens, 0.0) + whole.width
    assert en.distance(law, en.true_law(ONE, size, 4)) < 1e-9
