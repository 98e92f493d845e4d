"""Two sides for comparisons: runs whose times and acceptance a test dictates, with seeded noise."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from draftboard.judge.pairing import Run
from draftboard.record.records import Arm, Trace
from record_factory import BASELINE, make_arm, make_baseline, make_round, make_run, make_trace, plain_trace

TOKENS = 13


def side(
    seed: int = 0,
    *,
    slow: float = 1.0,
    slow_arm: float = 1.0,
    accepted: int = 3,
    noise: float = 0.01,
    prompts: int = 8,
    repeats: int = 2,
    arm: dict[str, Any] | None = None,
    **run: Any,
) -> Run:
    """A run of the baseline and one drafting arm. `slow` lengthens every decode time, `slow_arm` the
    drafting arm's; `accepted` of 3 guesses pass in each round; `noise` is the times' standard deviation."""
    dice = random.Random(seed)
    places = [(f"p{p}", r) for p in range(prompts) for r in range(repeats)]

    def timed(trace: Trace, factor: float) -> Trace:
        assert trace.rounds is not None
        scale = factor * dice.gauss(1, noise)
        ms, spans = trace.decode_ms * scale, ("draft_ms", "verify_ms", "commit_ms")
        scaled = {name: tuple(one * scale for one in getattr(trace.rounds, name)) for name in spans}
        rounds = replace(trace.rounds, **scaled)
        return replace(trace, rounds=rounds, decode_ms=ms, wall_ms=trace.wall_ms - trace.decode_ms + ms)

    plain = [timed(plain_trace(p, TOKENS, repeat=r), slow) for p, r in places]
    own = [timed(make_trace(p, _rounds(accepted), repeat=r), slow * slow_arm) for p, r in places]
    arms = [make_baseline(plain), make_arm(own, **(arm or {}))]
    return make_run(arms, repeats=repeats, **run), arms


def _rounds(accepted: int) -> list[Any]:
    """Rounds that emit twelve tokens in all."""
    size = accepted + 1
    sizes = [size] * (12 // size) + ([12 % size] if 12 % size else [])
    return [make_round(one - 1, proposed=3) for one in sizes]


def without(found: Run, arm: str) -> Run:
    """The run without an arm."""
    run, arms = found
    kept: list[Arm] = [one for one in arms if one.id != arm]
    return replace(run, arms=tuple(one.id for one in kept)), kept


__all__ = ["BASELINE", "side", "without"]
