"""Replaying recorded replies gives what n-gram look-up was measured to accept, round by round."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftboard.record import store
from draftboard.record.records import Arm
from draftboard_drafters import ngram
from scripted import Scripted

ROOT = Path(__file__).parent.parent
REPLAY = runpy.run_path(str(ROOT / "harness" / "bench" / "ngram_replay.py"))


def measured() -> list[Arm]:
    """The shipped arms of n-gram look-up at temperature 0."""
    loaded = [store.load(run.path) for run in store.Store(ROOT / "results").runs()]
    greedy = [arm for run, arms in loaded if run.sampling.temperature == 0 for arm in arms]
    return [arm for arm in greedy if arm.drafter == "ngram" and arm.error is None]


def test_shipped_records_have_the_rounds_of_their_replay() -> None:
    arms, cpu, nobody = measured(), SimpleNamespace(device=torch.device("cpu")), None
    assert arms
    for arm in arms:
        drafter = ngram.build(cpu, nobody, **arm.options)  # type: ignore[arg-type]
        for one in arm.traces[::8]:
            assert one.rounds is not None
            assert REPLAY["rounds_of"](drafter, one.prompt_ids, one.token_ids) == len(one.rounds)


@pytest.mark.parametrize(
    ("guesses", "rounds"),
    [([], 4), ([5, 6, 7], 1), ([5, 9, 7], 3), ([9], 4)],
    ids=["none", "all right", "one wrong", "all wrong"],
)
def test_rounds_are_counted_as_the_loop_counts_them(guesses: list[int], rounds: int) -> None:
    """Four tokens follow the first one; what the target says where a guess is wrong is part of its round."""
    said = [4, 5, 6, 7, 8]

    def script(text: list[int]) -> Any:
        return guesses if text[-1] == 4 else []

    assert REPLAY["rounds_of"](Scripted(script, k=3), [1, 2], said) == rounds
