"""Whether decoding became slower: the time of each arm over all sessions, and of all arms together.

Times are noisy, so one fails only when the whole interval over all sessions lies past the limit, and a second
session has confirmed it: its own figure lies past the limit too, so that one wild session cannot decide. It
passes when the interval ends below the limit and at most one session's figure was past it; an arm that is
undecided alone passes, under the same condition, with all arms together when its own figure is within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftboard.judge.compare import ArmChange, Comparison, inverse
from draftboard.judge.findings import Finding, percent, place_of, share
from draftboard.judge.ratios import SESSION_SD, Change, over_sessions

CONFIRMATIONS = 2
ALL_ARMS = "all arms"
Key = tuple[str, str, str]
"""Task, arm and arm id: two arms of one name have other options."""
TOGETHER: Key = ("", ALL_ARMS, "")
BESIDE = "`gate --against` the accepted commit runs both side by side and tells"


@dataclass(frozen=True, slots=True)
class _Time:
    """The time of one arm over all sessions, or of all arms."""

    place: tuple[str, str]
    change: Change
    """The log of the loss of speed, up is worse."""
    past: int
    """Sessions whose figure is past the limit."""
    sessions: int
    carried: bool
    """All arms together are within the limit."""
    one_machine: bool
    relative: bool
    """It is measured by plain decoding in its own run."""
    hint: str | None
    """Why the change may be none of the build's, and how to find out."""


def time_findings(sessions: Sequence[Comparison], whole: Comparison, limit: float) -> Iterator[Finding]:
    """A finding on the time of every arm; `whole` compares the sessions' replies all together."""
    bound = math.log1p(limit)
    before, pooled = [_losses(one) for one in sessions], _losses(whole)
    parts = {key: [one[key] for one in before if key in one] for key in pooled}
    least = SESSION_SD if whole.one_machine else 0.0
    losses = {key: over_sessions(change, parts[key], least) for key, change in pooled.items()}
    carried = TOGETHER in losses and _is_within(losses[TOGETHER], bound)
    arms = {_key(arm): arm for arm in whole.arms}
    for key, change in losses.items():
        past = sum(_is_past(part, bound) for part in parts[key])
        arm = None if whole.one_machine else arms.get(key)
        relative = arm is not None and not _is_plain(arm)
        hint = None if arm is None else _hint(arm, bound)
        time = _Time(key[:2], change, past, len(sessions), carried, whole.one_machine, relative, hint)
        yield _finding(time, limit)


def _losses(found: Comparison) -> dict[Key, Change]:
    """By arm the log of the loss of speed. Side by side the clock is the measure, otherwise each arm is
    measured by plain decoding in its own run. An arm that failed has no speed, and is told of."""
    losses: dict[Key, Change] = {}
    for arm in (one for one in found.arms if not (one.base.failed or one.candidate.failed)):
        own_clock = found.one_machine or _is_plain(arm)
        losses[_key(arm)] = arm.pace if own_clock else inverse(arm["speedup"].change)
    if found.one_machine and len(losses) > 1:
        losses[TOGETHER] = found.pace
    return losses


def _key(arm: ArmChange) -> Key:
    return *place_of(arm), arm.candidate.arm.id


def _is_plain(arm: ArmChange) -> bool:
    return arm.base.arm.id == arm.base.run.baseline


def _hint(arm: ArmChange, bound: float) -> str | None:
    """Against stored runs plain decoding has nothing to be measured by but the clock, which also tells of the
    machine's mood: it can raise a doubt there, not prove one. The others are measured by plain decoding, so
    one whose own clock is within the limit may have lost nothing."""
    if _is_plain(arm):
        return f"machine or build? {BESIDE}"
    if _is_within(arm.pace, bound):
        return f"its own clock is within the limit, so plain decoding became faster: {BESIDE}"
    return None


def _finding(time: _Time, limit: float) -> Finding:
    bound, change, text = math.log1p(limit), time.change, _figure(time)
    confirmed = time.past >= CONFIRMATIONS
    if change.log is None or change.lo is None or change.hi is None:
        return Finding(*time.place, "time", "cannot tell", text, change=change)
    if change.lo > bound and confirmed and time.hint is None:
        text += f": past {share(limit)} in {time.past} sessions"
        return Finding(*time.place, "time", "regression", text, change=change)
    if not confirmed and _is_within(change, bound):
        return Finding(*time.place, "time", "pass", f"{text}: within {share(limit)}", change=change)
    if not confirmed and time.carried and not _is_past(change, bound):
        text += f": its figure is within {share(limit)}, and so are all arms together"
        return Finding(*time.place, "time", "pass", text, change=change)
    text += f", limit {share(limit)}: {time.hint or _remedy(time, bound)}"
    return Finding(*time.place, "time", "cannot tell", text, again=time.hint is None, change=change)


def _figure(time: _Time) -> str:
    change = time.change
    if change.log is None or change.lo is None or change.hi is None:
        return f"no interval: {change.missing}: more prompts settle it"
    what = "time per token" + (" relative to plain decoding" if time.relative else "")
    return f"{percent(change.log)} {what} ({percent(change.lo)} to {percent(change.hi)})"


def _remedy(time: _Time, bound: float) -> str:
    """About how many sessions it takes until the interval no longer holds the limit: replies and whole
    sessions are both noisy, and both noises shrink with the number of sessions."""
    if not time.one_machine:
        return f"more prompts or repeats on both sides settle it, or {BESIDE}"
    if time.past >= CONFIRMATIONS and _is_within(time.change, bound):
        return f"{time.past} sessions were past it and all together are not; a quieter machine settles it"
    if time.past < CONFIRMATIONS and (time.change.lo or 0.0) > bound:
        return f"{CONFIRMATIONS} sessions must say so (--sessions {CONFIRMATIONS} or more)"
    distance = abs(bound - (time.change.log or 0.0))
    factor = ((time.change.half_width or 0.0) / max(distance, 1e-9)) ** 2
    more = math.ceil(factor * time.sessions)
    if not 1 < factor < 30:
        return "its figure is at the limit: a quieter machine settles it, more sessions hardly"
    return f"about {more} sessions instead of {time.sessions} settle it (--sessions {more})"


def _is_past(change: Change, bound: float) -> bool:
    return change.log is not None and change.log > bound


def _is_within(change: Change, bound: float) -> bool:
    return change.hi is not None and change.hi <= bound
