"""Whether a change may pass: findings, each with its outcome, and the outcome of all.

Acceptance of greedy decoding repeats exactly on one machine and build, so any change is told and a drop
past the limit fails. Times are noisy, so they fail only when the whole interval over all sessions lies past
the limit, and a second session has confirmed it: its own figure lies past the limit too, so that one wild
session cannot decide. They pass when the interval ends below the limit; an arm that is undecided alone passes
with all arms together when its own figure is within the limit. Losslessness has no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftboard.judge.compare import ArmChange, Comparison, compare, inverse
from draftboard.judge.findings import (
    EXIT_CODES,
    Finding,
    Limits,
    Outcome,
    facts,
    percent,
    place_of,
    records,
    share,
)
from draftboard.judge.pairing import Run, pooled
from draftboard.judge.ratios import SESSION_SD, Change, over_sessions

CONFIRMATIONS = 2
MAX_SESSIONS = 3
ALL_ARMS = "all arms"
Key = tuple[str, str, str]
"""Task, arm and arm id: two arms of one name have other options."""
TOGETHER: Key = ("", ALL_ARMS, "")


@dataclass(frozen=True, slots=True)
class Ruling:
    """The gate's answer: the outcome of all findings and the comparison behind them."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    comparison: Comparison
    sessions: int

    @property
    def exit_code(self) -> int:
        """The process's exit code."""
        return EXIT_CODES[self.outcome]


class Trial:
    """Sessions of both sides, judged as they come. `one_machine`: the sides took turns in every session."""

    def __init__(self, limits: Limits, *, one_machine: bool) -> None:
        self.limits, self.one_machine = limits, one_machine
        self._base: list[Sequence[Run]] = []
        self._candidate: list[Sequence[Run]] = []
        self._single: list[Comparison] = []

    def add(self, base: Sequence[Run], candidate: Sequence[Run]) -> Ruling:
        """Takes in one more session and rules on all so far."""
        self._base.append(base)
        self._candidate.append(candidate)
        self._single.append(compare(base, candidate, one_machine=self.one_machine))
        stride = max((run.repeats for runs in (*self._base, *self._candidate) for run, _ in runs), default=1)
        pools = (_pool(sessions, stride) for sessions in (self._base, self._candidate))
        whole = compare(*pools, one_machine=self.one_machine)
        # A pooled arm has the verdicts of its first session only, so every session speaks for itself.
        of_records = (finding for one in self._single for finding in records(one))
        found = tuple(dict.fromkeys((*of_records, *facts(whole, self.limits), *self._times(whole))))
        return Ruling(_gravest(found, whole), found, whole, len(self._single))

    def over(self, sessions: Iterable[tuple[Sequence[Run], Sequence[Run]]]) -> Ruling:
        """Takes sessions of base and candidate, which may be measured as they are asked for, until the
        ruling stands."""
        ruling = None
        for base, candidate in sessions:
            ruling = self.add(base, candidate)
            if not self.open(ruling):
                break
        return ruling or self.add((), ())

    def open(self, ruling: Ruling) -> bool:
        """True when another session might change the outcome: one would decide a time, and nothing else has
        decided against the change already."""
        undecided = any(finding.again for finding in ruling.findings)
        return undecided and ruling.outcome == "cannot tell" and ruling.sessions < MAX_SESSIONS

    def _times(self, whole: Comparison) -> Iterator[Finding]:
        limit = math.log1p(self.limits.time)
        before, pooled_losses = [_losses(one) for one in self._single], _losses(whole)
        parts = {key: [one[key] for one in before if key in one] for key in pooled_losses}
        least = SESSION_SD if self.one_machine else 0.0
        losses = {key: over_sessions(change, parts[key], least) for key, change in pooled_losses.items()}
        carried = TOGETHER in losses and _is_within(losses[TOGETHER], limit)
        for key, change in losses.items():
            past = sum(_is_past(part, limit) for part in parts[key])
            yield _time_finding(key[:2], change, past, self.limits.time, self._hint(key, whole), carried)

    def _hint(self, key: Key, whole: Comparison) -> str | None:
        """Against stored runs plain decoding has nothing to be measured by but the clock, which also tells
        of the machine's mood: it can raise a doubt there, not prove one."""
        plain = any(_key(a) == key and a.base.arm.id == a.base.run.baseline for a in whole.arms)
        if not plain or self.one_machine:
            return None
        return "machine or build? `gate --against` the accepted commit runs both side by side and tells"


def _pool(sessions: Sequence[Sequence[Run]], stride: int) -> list[Run]:
    """The runs of all sessions, runs of the same arms as one run. A stored side is the same in each.
    `stride`: the most repeats that a run of either side has."""
    if len(sessions) == 1:
        return list(sessions[0])
    alike: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for runs in sessions:
        for run, arms in runs:
            alike.setdefault((run.fingerprint, run.arms), []).append((run, arms))
    return [pooled(found, stride) for found in alike.values()]


def _key(arm: ArmChange) -> Key:
    return *place_of(arm), arm.candidate.arm.id


def _losses(found: Comparison) -> dict[Key, Change]:
    """By arm the log of the loss of speed, up is worse. Side by side the clock is the measure, otherwise each
    arm is measured by plain decoding in its own run."""
    losses: dict[Key, Change] = {}
    for arm in found.arms:
        plain = arm.base.arm.id == arm.base.run.baseline
        losses[_key(arm)] = arm.pace if found.one_machine or plain else inverse(arm["speedup"].change)
    if found.one_machine and len(losses) > 1:
        losses[TOGETHER] = found.pace
    return losses


def _time_finding(
    place: tuple[str, str], change: Change, past: int, limit: float, hint: str | None, carried: bool
) -> Finding:
    """`past`: sessions whose figure is past the limit; `carried`: all arms together are within it."""
    if change.log is None or change.lo is None or change.hi is None:
        return Finding(
            *place, "time", "cannot tell", f"no interval: {change.missing}: more prompts settle it"
        )
    bound = math.log1p(limit)
    text = f"{percent(change.log)} time per token ({percent(change.lo)} to {percent(change.hi)})"
    confirmed = past >= CONFIRMATIONS
    if change.lo > bound and confirmed and hint is None:
        return Finding(*place, "time", "regression", f"{text}: past {share(limit)} in {past} sessions")
    if not confirmed and _is_within(change, bound):
        return Finding(*place, "time", "pass", f"{text}: within {share(limit)}")
    if not confirmed and carried and not _is_past(change, bound):
        text = f"{text}: its figure is within {share(limit)}, and so are all arms together"
        return Finding(*place, "time", "pass", text)
    text = f"{text}, limit {share(limit)}: {hint or _remedy(change, bound)}"
    return Finding(*place, "time", "cannot tell", text, again=hint is None)


def _remedy(change: Change, bound: float) -> str:
    """About how much more must be measured until the interval no longer holds the limit."""
    distance = abs(bound - (change.log or 0.0))
    factor = ((change.half_width or 0.0) / max(distance, 1e-9)) ** 2
    if not 1 < factor < 100:
        return "a quiet machine or another session settles it"
    more = math.ceil(factor * change.units)
    return f"about {more} replies on each side instead of {change.units} settle it (more sessions or prompts)"


def _is_past(change: Change, bound: float) -> bool:
    return change.log is not None and change.log > bound


def _is_within(change: Change, bound: float) -> bool:
    return change.hi is not None and change.hi <= bound


def _gravest(findings: Iterable[Finding], found: Comparison) -> Outcome:
    outcomes: set[Outcome] = {finding.outcome for finding in findings}
    if not found.arms:
        outcomes.add("nothing comparable")
    return next((outcome for outcome in EXIT_CODES if outcome in outcomes), "pass")
