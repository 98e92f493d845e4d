"""What the gate finds that no repetition would change: presence, settings, losslessness, acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftboard.judge.compare import ArmChange, Comparison
from draftboard.judge.pairing import Measured
from draftboard.judge.ratios import Change
from draftboard.judge.summary import verdict_of

Outcome = Literal["not lossless", "regression", "nothing comparable", "cannot tell", "pass"]
EXIT_CODES: dict[Outcome, int] = {
    "not lossless": 4,
    "regression": 1,
    "nothing comparable": 5,
    "cannot tell": 3,
    "pass": 0,
}
"""The gravest first: the outcome of several findings is the first of these that one of them has."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much worse is too much, as shares; `floors` are the least acceptance lengths, by task and arm."""

    time: float = 0.03
    acceptance: float = 0.01
    floors: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement in words. `check` is what was looked at."""

    task: str
    arm: str
    check: Literal["losslessness", "presence", "same setting", "acceptance", "floor", "time"]
    outcome: Outcome
    text: str


def facts(found: Comparison, limits: Limits) -> Iterator[Finding]:
    """Every finding but those about time."""
    yield from _presence(found)
    yield from _settings(found)
    for arm in found.arms:
        yield from _lossless(arm)
        yield from _acceptance(arm, limits)
        yield from _complete(arm)


def place_of(arm: ArmChange) -> tuple[str, str]:
    """Task and arm, as findings name them."""
    return arm.candidate.task, arm.candidate.label


def percent(log: float) -> str:
    """A log ratio as a signed percentage."""
    return f"{math.expm1(log):+.1%}"


def _acceptance(arm: ArmChange, limits: Limits) -> Iterator[Finding]:
    place, found = place_of(arm), arm["acceptance_length"]
    if found.candidate is None or arm.base.arm.id == arm.base.run.baseline:
        return
    floor = limits.floors.get(place)
    if floor is not None:
        held = found.candidate >= floor
        text = f"E[L] {found.candidate:.3f}, floor {floor:.3f}"
        yield Finding(*place, "floor", "pass" if held else "regression", text)
    change = found.change
    if change.log is None:
        yield Finding(*place, "acceptance", "cannot tell", change.missing or "unknown")
        return
    text = f"E[L] {found.base:.3f} to {found.candidate:.3f}, {percent(change.log)} over the same prompts"
    yield Finding(*place, "acceptance", _acceptance_outcome(arm, change, limits), text)


def _acceptance_outcome(arm: ArmChange, change: Change, limits: Limits) -> Outcome:
    """Greedy counts have no noise; sampled ones are judged by their interval."""
    bound = math.log1p(-limits.acceptance)
    if arm.base.run.sampling.temperature == 0:
        return "regression" if (change.log or 0.0) < bound else "pass"
    if change.lo is None or change.hi is None:
        return "cannot tell"
    return "regression" if change.hi < bound else "pass" if change.lo >= bound else "cannot tell"


def _lossless(arm: ArmChange) -> Iterator[Finding]:
    own = arm.candidate
    verdict = verdict_of(own.arm, own.run.dtype)
    if own.arm.id == own.run.baseline:
        if arm.other_replies and own.run.sampling.temperature == 0:
            text = (
                f"plain decoding gives other tokens than before in {arm.other_replies} of {arm.turns} turns"
            )
            yield Finding(*place_of(arm), "losslessness", "pass", text)
        return
    if verdict.kind == "bug":
        yield Finding(*place_of(arm), "losslessness", "not lossless", verdict.reason)
    elif verdict.kind == "not checked" and own.run.sampling.temperature == 0 and not own.arm.error:
        yield Finding(*place_of(arm), "losslessness", "cannot tell", f"not checked: {verdict.reason}")
    else:
        yield Finding(*place_of(arm), "losslessness", "pass", f"{verdict.kind}: {verdict.reason}")


def _complete(arm: ArmChange) -> Iterator[Finding]:
    before, after = arm.base.arm.error, arm.candidate.arm.error
    if after:
        outcome: Outcome = "cannot tell" if before else "regression"
        yield Finding(
            *place_of(arm), "presence", outcome, f"failed: {after}{' (before too)' if before else ''}"
        )
    elif before:
        yield Finding(*place_of(arm), "presence", "cannot tell", f"the base failed: {before}")
    elif arm.turns < arm.expected:
        text = f"only {arm.turns} of {arm.expected} turns were answered by both"
        yield Finding(*place_of(arm), "presence", "cannot tell", text)


def _presence(found: Comparison) -> Iterator[Finding]:
    for gone in found.vanished:
        yield Finding(gone.task, gone.label, "presence", "regression", f"vanished: measured by {_name(gone)}")
    for new in found.new:
        yield Finding(new.task, new.label, "presence", "pass", "new: nothing to compare it with")


def _settings(found: Comparison) -> Iterator[Finding]:
    for one in found.refused:
        text = f"not compared, other {', '.join(one.fields)}: {_name(one.base)} and {_name(one.candidate)}"
        yield Finding(one.candidate.task, one.candidate.label, "same setting", "cannot tell", text)


def _name(one: Measured) -> str:
    return f"run {one.run.id}"
