"""Where two replies part, and how close the call was: a near-tie and a real fault are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from draftboard.judge.lossless import judge_lossless
from draftboard.measure.lossless import examine
from draftboard.measure.target import TargetModel
from draftboard.record.records import Divergence, Losslessness, Trace
from draftboard.record.replies import differing, first_difference, key
from scripted import Scripted, always, wrong_at
from tiny import tiny_model
from watched import run

PROMPT = (84, 7, 56, 34, 18)


def trace(*ids: int, prompt: str = "p", turn: int = 0, repeat: int = 0) -> Trace:
    pieces = tuple(map(str, ids))
    return Trace(
        prompt, "c", turn, repeat, PROMPT, ids, pieces, None, 1.0, 0.0, 1.0, 2.0, "length", "no rounds"
    )


@pytest.mark.parametrize(
    ("own", "other", "position"),
    [
        ((), (), None),
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), 1),
        ((4, 2), (1, 2), 0),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1,), 1),
    ],
)
def test_the_first_difference_of_two_replies(
    own: tuple[int, ...], other: tuple[int, ...], position: int | None
) -> None:
    assert first_difference(own, other) == position


def test_replies_are_paired_by_prompt_turn_and_repeat() -> None:
    pairs = {key(one): one for one in (trace(1, 2), trace(3, 4, turn=1), trace(5, 6, repeat=1))}
    arm = [trace(1, 2), trace(3, 9, turn=1), trace(7, 6, repeat=1), trace(8, 8, prompt="not in the baseline")]
    found = differing(pairs, arm)
    assert [(own.token_ids, other.token_ids, position) for own, other, position in found] == [
        ((3, 4), (3, 9), 1),
        ((5, 6), (7, 6), 0),
    ]


class Dictated:
    """A target whose last logits a test dictates; it keeps the text it was asked about."""

    device = torch.device("cpu")

    def __init__(self, logits: Sequence[float], dtype: torch.dtype) -> None:
        self.logits = torch.tensor([logits], dtype=dtype)

    def begin(self, taps: tuple[int, ...]) -> None:
        self.asked: list[int] = []

    def prefill(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.asked += ids.tolist()
        return self.logits, torch.empty(len(ids), 0, 1)


def dictated(logits: Sequence[float], dtype: torch.dtype = torch.bfloat16) -> TargetModel:
    return cast(TargetModel, Dictated(logits, dtype))


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("one", "other", "dtype", "gap", "ulp"),
    [
        (10.0, 10.0, BF16, 0.0, 0.0),
        (10.0, 9.9375, BF16, 0.0625, 1.0),  # 8 <= 10 < 16: the unit is 8 / 128
        (1.0, 0.96875, BF16, 0.03125, 4.0),  # 1 / 128 at the larger one, though the smaller's is half
        (-10.0, -10.25, BF16, 0.25, 4.0),
        (-0.5, 0.5, BF16, 1.0, 256.0),
        (8.0, 7.96875, BF16, 0.03125, 0.5),
        (0.0, 0.0, BF16, 0.0, 0.0),
        (10.0, 9.9921875, F16, 0.0078125, 1.0),
        (10.0, 10.0 + 2.0**-20, F32, 2.0**-20, 1.0),
    ],
)
def test_the_gap_in_units_of_the_last_place(
    one: float, other: float, dtype: torch.dtype, gap: float, ulp: float
) -> None:
    for logits in ([one, other, -99.0], [other, one, -99.0]):
        target = dictated(logits, dtype)
        found = examine(target, dictated(logits, F32), trace(1, 0), trace(1, 1), 1)
        assert (found.gap, found.gap_ulp) == (gap, ulp)


def test_both_views_are_asked_about_the_common_text_and_each_gives_its_part() -> None:
    target, precise = dictated([1.0, 1.0, 5.0]), dictated([3.0, 2.0, 2.5], F32)
    found = examine(target, precise, trace(9, 8, 0, 4, turn=1), trace(9, 8, 1, 7, 7, turn=1, repeat=2), 2)
    assert cast(Any, target).asked == cast(Any, precise).asked == [*PROMPT, 9, 8]
    assert found == Divergence("p", 1, 2, 2, 0, 1, (0, 2), 0.0, 0.0)


@pytest.mark.parametrize(("own", "arm"), [((1, 2), (1, 2, 0)), ((1, 2, 0), (1, 2))])
def test_a_reply_that_has_ended_has_no_token_and_no_gap(own: tuple[int, ...], arm: tuple[int, ...]) -> None:
    found = examine(dictated([1.0, 2.0]), dictated([1.0, 2.0], F32), trace(*own), trace(*arm), 2)
    assert (found.baseline_token, found.arm_token) == ((None, 0) if len(own) == 2 else (0, None))
    assert (found.gap, found.gap_ulp, found.float32_top2) == (None, None, (1, 0))


def twins(nudge: float, place: int) -> tuple[TargetModel, TargetModel, Trace, Trace]:
    """A bfloat16 target and its float32 self, in which one token has a twin: its own head row, scaled by
    1 - nudge. The baseline's reply says the token at `place`, the arm's says the twin."""
    said = [int(token) for token in run(narrow(tiny_model()), Scripted(always()), 8, PROMPT).token_ids]
    token = said[place]
    twin = next(i for i in range(96) if i not in said)
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[token] * (1 - nudge)
    target, precise = narrow(model), TargetModel(model.float(), id="precise", max_context=256)
    swapped = [twin if i == place else other for i, other in enumerate(said)]
    return target, precise, trace(*said), trace(*swapped)


def narrow(model: Any) -> TargetModel:
    return TargetModel(model.to(torch.bfloat16), id="narrow", max_context=256, stop_ids=frozenset())


def verdict(target: TargetModel, precise: TargetModel, own: Trace, arm: Trace) -> str:
    (found,) = differing({key(own): own}, [arm])
    facts = Losslessness(1, 0, (examine(target, precise, *found),))
    return judge_lossless(facts, "bfloat16").kind


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize(("nudge", "kind"), [(0.0, "tie"), (1 / 128, "tie"), (1 / 4, "bug")])
def test_a_near_tie_is_a_tie_and_a_clear_choice_is_a_bug(nudge: float, kind: str, place: int) -> None:
    target, precise, own, arm = twins(nudge, place)
    assert verdict(target, precise, own, arm) == kind


def test_a_token_that_is_no_contender_is_a_bug() -> None:
    target, precise, own, arm = twins(0.0, 3)
    stranger = next(i for i in range(96) if i not in own.token_ids and i not in arm.token_ids)
    assert verdict(target, precise, own, trace(*own.token_ids[:3], stranger)) == "bug"


def test_a_planted_fault_of_the_cache_is_a_bug() -> None:
    class KeepsOneTooMany(TargetModel):
        def truncate(self, length: int) -> None:
            super().truncate(min(length + 1, self.length))

    model = tiny_model()
    target, precise = narrow(model), TargetModel(tiny_model(), id="precise", max_context=256)
    faulty = KeepsOneTooMany(model, id="faulty", max_context=256, stop_ids=frozenset())
    own = run(target, Scripted(always()), 30, PROMPT).token_ids
    arm = run(faulty, Scripted(wrong_at(1, [*PROMPT, *own], 4, 96)), 30, PROMPT).token_ids
    assert verdict(target, precise, trace(*own), trace(*arm)) == "bug"
