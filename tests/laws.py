"""The law of what one round emits with a real drafter, by enumerating every number that it draws.

The drafter gets a sampler that remembers each law it draws from, so the stretches of uniform numbers that
lead to a draft are known without asking the drafter, who may say anything. Every draft is tried at both ends
of its stretches; its verdicts are enumerated with the law that the drafter handed over, which is what the
acceptance rule reads, and with the target's law as the sampler rounds it. What comes out is exact for a
drafter that hands over a wrong law, too; what it is compared with comes from transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import enumeration as en
from draftboard.drafter import Draft
from draftboard.measure.rehearsal import Make
from draftboard.measure.sampling import Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling

FILLER = [0.5] * 64
"""Numbers for draws that nobody looks at."""
LATEST = 2
"""Tokens of a stage's text that are committed after a proposal; the others are there at the prefill."""

Change = Callable[[Any, Draft], Draft]
Conditional = Callable[[tuple[int, ...]], en.Vector]


class Spied(Sampler):
    """Remembers the laws it drew from, one a row."""

    def __init__(self, settings: Sampling) -> None:
        super().__init__(settings, en.Script([]))
        self.laws: list[en.Vector] = []

    def _choose(self, probs: Tensor) -> Tensor:
        self.laws += list(probs.double().numpy())
        return super()._choose(probs)


class Stage:
    """A drafter before one round in the midst of a reply, to be played as often as wanted."""

    @torch.inference_mode()
    def __init__(
        self,
        make: Make,
        target: TargetModel,
        judge: Spied,
        text: Sequence[int],
        limit: int,
        change: Change = lambda drafter, draft: draft,
    ) -> None:
        """`text` is prompt and reply so far; `change` is what a fault does to a draft."""
        self.drafter, self.target, self.judge = make(target, judge), target, judge
        self.text, self.limit, self.change = torch.tensor(text), limit, change
        target.begin(self.drafter.taps)
        _, self.features = target.prefill(self.text[:-1])
        self.judged = cache(self._judged)

    @torch.inference_mode()
    def draft(self, numbers: Sequence[float]) -> Draft:
        """The draft for these numbers; afterwards `judge.laws` are those it was drawn from."""
        self.judge.restart(en.Script(FILLER))
        self.drafter.prefill(self.text[:-LATEST], self.features[:-LATEST])
        self.drafter.propose(self.limit)
        self.drafter.commit(self.text[-LATEST:], self.features[-LATEST:])
        self.judge.laws.clear()
        self.judge.restart(en.Script(numbers))
        return self.change(self.drafter, self.drafter.propose(self.limit))

    def paths(self, ends: tuple[en.End, ...] = ()) -> Iterator[tuple[tuple[en.End, ...], Draft]]:
        """The stretches of numbers, one a draw, that lead to each draft, and that at their lower ends."""
        draft = self.draft([*(end.inside()[0] for end in ends), *FILLER])
        laws = list(self.judge.laws)
        if len(laws) == len(ends):
            yield ends, draft
            return
        for end, _ in en.pieces(laws[len(ends)]):
            yield from self.paths((*ends, end))

    def verdicts(self, draft: Draft) -> en.Law:
        """The law of what the target makes of a draft."""
        probs = None if draft.probs is None else tuple(map(tuple, draft.probs.tolist()))
        return self.judged(tuple(draft.tokens.tolist()), probs)

    def _judged(self, drafted: tuple[int, ...], probs: Any) -> en.Law:
        rows = self._rows(drafted)
        p = self.judge.probabilities(rows).double().numpy()
        q = np.array(probs) if probs else np.eye(rows.shape[1])[list(drafted)]
        draft = Draft(torch.tensor(drafted, dtype=torch.int64), torch.tensor(probs) if probs else None)
        return en.verdict_law(self.judge, rows, draft, en.round_cells(list(p), list(q), drafted))

    @torch.inference_mode()
    def _rows(self, drafted: tuple[int, ...]) -> Tensor:
        """The target's logits [K+1, V] in a round that verifies `drafted`."""
        self.target.truncate(len(self.text) - 1)
        logits, _ = self.target.extend(torch.cat([self.text[-1:], torch.tensor(drafted, dtype=torch.int64)]))
        return logits


@torch.inference_mode()
def emitted(stage: Stage) -> en.Law:
    """The law of the tokens that the round emits."""
    parts = []
    for ends, lower in stage.paths():
        upper = stage.draft([end.inside()[1] for end in ends])
        share = en.Cell(ends, ()).width / 2
        parts += [(share, stage.verdicts(lower)), (share, stage.verdicts(upper))]
    return en.mixed(parts)


def conditional(model: Any, text: Sequence[int], settings: Sampling) -> Conditional:
    """The target's law [V] of the token after `text` and some more, by transformers alone."""

    @cache
    def law(after: tuple[int, ...]) -> en.Vector:
        with torch.inference_mode():
            return en.warped(model(input_ids=torch.tensor([[*text, *after]])).logits[0, -1], settings)

    return law


def completed(law: en.Law, after: Conditional, count: int) -> en.Law:
    """The law of `count` tokens, where the target itself says those that `law` leaves open."""
    for length in range(count):
        law = en.mixed(
            (share, {tokens: 1.0} if len(tokens) > length else _one_more(tokens, after))
            for tokens, share in law.items()
        )
    return law


def _one_more(tokens: tuple[int, ...], after: Conditional) -> en.Law:
    return {(*tokens, token): float(share) for token, share in enumerate(after(tokens))}
