"""Faults to inject into serial drafters, each of which runs and only lowers acceptance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from draftboard.drafter import Draft
from draftboard_drafters._layers import Rotary, Rows
from draftboard_drafters._serial import SerialDrafter
from draftboard_drafters.checkpoints import Checkpoint
from golden import Case, Make, Run, check_logits, check_tokens, replay

ROUNDS = 6
"""Rounds in which faults are looked for: those whose logits are recorded."""

Fault = Callable[[pytest.MonkeyPatch, Checkpoint], Checkpoint]


def taps_moved(by: int, layers: int = 8) -> Fault:
    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        return dataclasses.replace(checkpoint, taps=tuple(tap + by for tap in checkpoint.taps_of(layers)))

    return fault


def serial_changed(**changes: Any) -> Fault:
    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        assert checkpoint.serial is not None
        return dataclasses.replace(checkpoint, serial=dataclasses.replace(checkpoint.serial, **changes))

    return fault


def drafts_turned(by: int) -> Fault:
    """Rows of the drafter's own features at positions one off, those of true features at their own."""

    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        propose, at = SerialDrafter.propose, Rotary.at

        def shifted(self: SerialDrafter, limit: int) -> Draft:
            with patch.context() as inner:
                inner.setattr(Rotary, "at", lambda s, p: at(s, slice(p.start + by, p.stop + by)))
                inner.setattr(Rows, "start", None)  # a compiled call reads its angles elsewhere
                return propose(self, limit)

        patch.setattr(SerialDrafter, "propose", shifted)
        return checkpoint

    return fault


def tokens_not_shifted(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    """Feature t is joined with the embedding of token t, not of the token after it."""
    prefill, commit, newest = SerialDrafter.prefill, SerialDrafter.commit, dict[int, Tensor]()

    def unshifted_prefill(self: SerialDrafter, tokens: Tensor, features: Tensor) -> None:
        newest[id(self)] = tokens[-1:]
        prefill(self, tokens[:1].new_tensor([0, *tokens[:-1].tolist()]), features)

    def unshifted_commit(self: SerialDrafter, tokens: Tensor, features: Tensor) -> None:
        before = [*newest[id(self)].tolist(), *tokens[:-1].tolist()]
        newest[id(self)] = tokens[-1:]
        commit(self, tokens.new_tensor(before), features)

    patch.setattr(SerialDrafter, "prefill", unshifted_prefill)
    patch.setattr(SerialDrafter, "commit", unshifted_commit)
    return checkpoint


def draft_rows_kept(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    """Rows that drafting left for accepted tokens stay, instead of being made anew of true features."""
    propose, commit, drafted = SerialDrafter.propose, SerialDrafter.commit, dict[int, int]()

    def counted(self: SerialDrafter, limit: int) -> Draft:
        draft = propose(self, limit)
        drafted[id(self)] = len(draft.tokens)
        return draft

    def keeping(self: SerialDrafter, tokens: Tensor, features: Tensor) -> None:
        kept = max(0, min(len(tokens) - 1, drafted[id(self)] - 1))
        self.cache.length += kept
        commit(self, tokens[kept:], features[kept:])

    patch.setattr(SerialDrafter, "propose", counted)
    patch.setattr(SerialDrafter, "commit", keeping)
    return checkpoint


FAULTS: dict[str, Fault] = {
    "drafts turned one position too few": drafts_turned(-1),
    "drafts turned one position too many": drafts_turned(1),
    "tokens not shifted": tokens_not_shifted,
    "rows of drafts kept": draft_rows_kept,
}
"""Faults of the bookkeeping that all serial drafters share."""


def check_first_rounds(which: Case, make: Make) -> None:
    """Tokens, counts and logits of the first rounds of a run; AssertionError where any differs."""
    run = which.run("prompt1")
    rounds = run["rounds"][:ROUNDS]
    ids = run["output_ids"][: 1 + sum(len(one["committed_ids"]) for one in rounds)]
    short: Run = {
        **run, "rounds": rounds, "output_ids": ids, "max_new_tokens": len(ids)
    }  # fmt: skip
    found = replay(which, short, make)
    check_tokens(short, found)
    assert check_logits(which, short, found) == ROUNDS
