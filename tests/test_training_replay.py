"""A replay accepts what the engine accepts, round by round, without the target."""

from __future__ import annotations

import pytest
import torch

from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard_drafters.training.evaluate import calibration, greedy_sampler, positions
from draftboard_drafters.training.replay import Replayed, acceptance_length, replay
from shipped import GUESSING, maker
from tiny import tiny_target

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", GUESSING)
@pytest.mark.parametrize("length", [1, 2, 5, 23])
def test_a_replay_has_the_rounds_of_the_engine(name: str, length: int) -> None:
    target, prompt = tiny_target(), [3, 1, 4, 1, 5, 9, 2, 6]
    drafter = maker(name, 3)(target, greedy_sampler(CPU))
    reply = decode(
        target, drafter, torch.tensor(prompt), greedy_sampler(CPU), Clock(CPU), max_new_tokens=length
    )
    with torch.inference_mode():
        target.begin(drafter.taps)
        _, states = target.prefill(torch.tensor([*prompt, *reply.token_ids]))
    rounds = replay(drafter, prompt, reply.token_ids, states)
    assert [one.proposed for one in rounds] == list(reply.rounds.proposed)
    assert [one.accepted for one in rounds] == list(reply.rounds.accepted)


def test_length_positions_and_calibration_by_hand() -> None:
    rounds = [Replayed(2, 2, (0.95, 0.85)), Replayed(2, 0, (0.15, 0.99)), Replayed(2, 1, (0.75, 0.35))]
    assert acceptance_length(rounds) == 2.0
    assert positions(rounds, 2) == pytest.approx((2 / 3, 1 / 3))
    found = calibration(rounds)
    assert found is not None
    # Judged: .95 .85 .75 passed, .15 .35 failed; .99 stands behind a failed guess.
    assert found["guesses"] == 5
    assert found["auc"] == 1.0
    assert found["ece"] == pytest.approx((0.05 + 0.15 + 0.25 + 0.15 + 0.35) / 5, abs=1e-6)


def test_calibration_without_confidence_or_with_one_outcome_is_unknown() -> None:
    assert calibration([Replayed(1, 1, None)]) is None
    assert calibration([Replayed(1, 1, (0.5,)), Replayed(1, 1, (0.6,))]) is None
