"""What the gate finds that no repetition would change: presence, settings, losslessness, acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from draftboard.errors import UserError, suggestion
from draftboard.judge.compare import ArmChange, Comparison
from draftboard.judge.lossless import verdict_of
from draftboard.judge.metrics import BY_NAME
from draftboard.judge.pairing import Measured
from draftboard.judge.ratios import Change
from draftboard.judge.sample import take_sample
from draftboard.judge.validity import doubts
from draftboard.record.accepted import Ledger, options_text

Outcome = Literal["not lossless", "regression", "nothing comparable", "cannot tell", "pass"]
EXIT_CODES: dict[Outcome, int] = {
    "not lossless": 4,
    "regression": 1,
    "nothing comparable": 5,
    "cannot tell": 3,
    "pass": 0,
}
"""The gravest first: the outcome of several findings is the first of these that one of them has."""


NO_FLOORS = Ledger()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much worse is too much, as shares; `ledger` has the least acceptance lengths. Raises UserError for
    a limit that is no share."""

    time: float = 0.03
    acceptance: float = 0.01
    ledger: Ledger = NO_FLOORS

    def __post_init__(self) -> None:
        for name, value in (("limit", self.time), ("acceptance limit", self.acceptance)):
            if not 0 <= value < 1:
                raise UserError(f"the {name} is a share, at least 0 and below 1; found {value} (3 % is 0.03)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement in words. `check` is what was looked at."""

    task: str
    arm: str
    check: Literal["losslessness", "validity", "presence", "same setting", "acceptance", "floor", "time"]
    outcome: Outcome
    text: str
    again: bool = False
    """Another session may decide it."""
    change: Change | None = None
    """Of a time: the change that was judged, up is worse."""


def records(found: Comparison) -> Iterator[Finding]:
    """What the records of one session say by themselves: losslessness of every arm of the candidate, compared
    with anything or not, and what speaks against the figures of either side."""
    for arm in found.arms:
        yield from lossless(arm.candidate)
        yield from _doubts(arm.base, found, "the base's run: ")
        yield from _doubts(arm.candidate, found)
    for own in _uncompared(found):
        yield from lossless(own)
        yield from _doubts(own, found)


def facts(found: Comparison, limits: Limits) -> Iterator[Finding]:
    """What is found in all sessions together, save about time. What needs no base is judged of every arm of
    the candidate, those that were not compared with anything too."""
    yield from presence(found)
    yield from _settings(found)
    for arm in found.arms:
        yield from _floor(arm.candidate, limits)
        yield from _plain_text(arm)
        yield from _acceptance(arm, limits)
        yield from _complete(arm)
    for own in _uncompared(found):
        yield from _floor(own, limits)
        if own.arm.error:
            yield Finding(own.task, own.name, "presence", "regression", f"failed: {own.arm.error}")
    yield from _floors_of_nobody(found, limits)


def _uncompared(found: Comparison) -> tuple[Measured, ...]:
    """The candidate's arms without a counterpart that they may be compared with."""
    return (*found.new, *(one.candidate for one in found.refused))


def place_of(arm: ArmChange) -> tuple[str, str]:
    """Task and arm, as findings name them."""
    return arm.candidate.task, arm.candidate.name


def percent(log: float) -> str:
    """A log ratio as a signed percentage, +0.0% for whatever rounds to none."""
    return f"{math.expm1(log):+z.1%}"


def share(limit: float) -> str:
    """A limit as a percentage, with the digits that it was given with.

    >>> share(0.03), share(0.005)
    ('3%', '0.5%')
    """
    return f"{100 * limit:.6g}%"


def _is_plain(own: Measured) -> bool:
    return own.arm.id == own.run.baseline


def _floor(own: Measured, limits: Limits) -> Iterator[Finding]:
    """The arm's least acceptance length, whatever the base has. A failed arm has failed already."""
    floor = limits.ledger.floor_of(own.run, own.label, options_text(own.arm))
    if floor is None or own.arm.error:
        return
    found = BY_NAME["acceptance_length"].of(take_sample(own.baseline, own.arm))
    if found.value is None:
        text = (
            f"E[L] is not known ({found.missing}), floor {floor:.3f}: an engine that tells rounds settles it"
        )
        yield Finding(own.task, own.name, "floor", "cannot tell", text)
        return
    outcome: Outcome = "pass" if found.value >= floor else "regression"
    yield Finding(own.task, own.name, "floor", outcome, f"E[L] {found.value:.3f}, floor {floor:.3f}")


def _floors_of_nobody(found: Comparison, limits: Limits) -> Iterator[Finding]:
    """Floors for such runs as the candidate's whose arm is not in them: they guard nothing."""
    measured = (*(arm.candidate for arm in found.arms), *_uncompared(found))
    for floor in limits.ledger.floors:
        beside = [own for own in measured if floor.is_of(own.run)]
        if beside and not any(floor.names(own.label, options_text(own.arm)) for own in beside):
            text = f"floor {floor.acceptance_length:.3f}: no such arm was measured"
            text += suggestion(floor.arm, sorted({own.label for own in beside}))
            text += "; measure it, or mend the floor in results/accepted.toml"
            yield Finding(floor.task, floor.arm, "floor", "cannot tell", text)


def _acceptance(arm: ArmChange, limits: Limits) -> Iterator[Finding]:
    """Where neither side tells its rounds there is nothing to compare; a failed arm has failed already."""
    place, found = place_of(arm), arm["acceptance_length"]
    silent = found.base is None and found.candidate is None
    if _is_plain(arm.base) or silent or arm.base.arm.error or arm.candidate.arm.error:
        return
    change = found.change
    if change.log is None:
        text = f"{change.missing}: measure both sides with an engine that tells rounds, on the same prompts"
        yield Finding(*place, "acceptance", "cannot tell", text)
        return
    outcome = _acceptance_outcome(arm, change, limits)
    text = f"E[L] {found.base:.3f} to {found.candidate:.3f}, {percent(change.log)} over the same prompts"
    if outcome == "cannot tell":
        text += f", limit {share(limits.acceptance)}: more prompts or repeats settle it"
    yield Finding(*place, "acceptance", outcome, text)


def _acceptance_outcome(arm: ArmChange, change: Change, limits: Limits) -> Outcome:
    """Greedy counts have no noise; sampled ones are judged by their interval."""
    bound = math.log1p(-limits.acceptance)
    if arm.base.run.sampling.temperature == 0:
        return "regression" if (change.log or 0.0) < bound else "pass"
    if change.lo is None or change.hi is None:
        return "cannot tell"
    return "regression" if change.hi < bound else "pass" if change.lo >= bound else "cannot tell"


def _plain_text(arm: ArmChange) -> Iterator[Finding]:
    """Plain decoding has nothing to be compared with but its own replies of before."""
    if _is_plain(arm.candidate) and arm.other_replies and arm.candidate.run.sampling.temperature == 0:
        text = (
            f"plain decoding gives other tokens than before in {arm.other_replies} of {arm.turns} turns;"
            " where the change is meant to alter the text, a base made after it settles the rest; else the"
            " target is broken"
        )
        yield Finding(*place_of(arm), "losslessness", "cannot tell", text)


def lossless(own: Measured) -> Iterator[Finding]:
    """Whether an arm's replies are the target's own. What was not looked at yields no pass: nothing where
    tokens were sampled, where nothing can be looked at, and where the arm failed, which is told elsewhere."""
    verdict = verdict_of(own.baseline, own.arm, own.run.dtype)
    place = own.task, own.name
    if verdict.kind == "bug":
        yield Finding(*place, "losslessness", "not lossless", verdict.reason)
    elif verdict.kind != "not checked":
        yield Finding(*place, "losslessness", "pass", f"{verdict.kind}: {verdict.reason}")
    elif own.run.sampling.temperature == 0 and not own.arm.error and not _is_plain(own):
        text = f"not checked: {verdict.reason}: a run whose replies are compared settles it"
        yield Finding(*place, "losslessness", "cannot tell", text)


def _doubts(own: Measured, found: Comparison, whose: str = "") -> Iterator[Finding]:
    """Every reason not to believe an arm's figures. Runs that took turns disturb each other by design."""
    for doubt in doubts(own.run, own.baseline, own.arm, turns=found.one_machine):
        yield Finding(
            own.task, own.name, "validity", "cannot tell", f"{whose}{doubt}: a run without it settles it"
        )


def _complete(arm: ArmChange) -> Iterator[Finding]:
    place, before, after = place_of(arm), arm.base.arm.error, arm.candidate.arm.error
    if after and before:
        text = f"failed: {after} (before too): judge it by a base in which it works"
        yield Finding(*place, "presence", "cannot tell", text)
    elif after:
        yield Finding(*place, "presence", "regression", f"failed: {after}")
    elif before:
        text = f"the base failed: {before}: judge it by a base in which it works"
        yield Finding(*place, "presence", "cannot tell", text)
    elif arm.turns < arm.expected:
        text = f"only {arm.turns} of {arm.expected} turns were answered by both: measure the rest"
        yield Finding(*place, "presence", "cannot tell", text)


def presence(found: Comparison) -> Iterator[Finding]:
    """Arms that one side of a session has alone."""
    for gone in found.vanished:
        yield Finding(gone.task, gone.name, "presence", "regression", f"vanished: measured by {_name(gone)}")
    for new in found.new:
        yield Finding(new.task, new.name, "presence", "pass", "new: nothing to compare it with")


def _settings(found: Comparison) -> Iterator[Finding]:
    for one in found.refused:
        text = f"not compared, other {', '.join(one.fields)}: {_name(one.base)} and {_name(one.candidate)}"
        text += "; measure both alike, or accept the newer one"
        yield Finding(one.candidate.task, one.candidate.name, "same setting", "cannot tell", text)


def _name(one: Measured) -> str:
    return f"run {one.run.id}"
