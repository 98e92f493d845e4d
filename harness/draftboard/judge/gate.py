"""Whether a change may pass: findings, each with its outcome, and the outcome of all.

Acceptance of greedy decoding repeats exactly on one machine and build, so any change is told and a drop
past the limit fails. Times are noisy, so they are judged over sessions (see `times`). Losslessness has no
limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftboard.errors import UserError
from draftboard.judge.compare import Comparison, compare
from draftboard.judge.findings import EXIT_CODES, Finding, Limits, Outcome, facts, presence, records
from draftboard.judge.pairing import Run, pooled
from draftboard.judge.times import time_findings

MAX_SESSIONS = 3


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
    """Sessions of both sides, judged as they come, `most` of them. `one_machine`: the sides took turns in
    every session. Raises UserError for less than one session."""

    def __init__(self, limits: Limits, *, one_machine: bool, most: int = MAX_SESSIONS) -> None:
        if most < 1:
            raise UserError(f"--sessions must be 1 or more, found {most}")
        self.limits, self.one_machine, self.most = limits, one_machine, most
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
        times = time_findings(self._single, whole, self.limits.time)
        own = (finding for one in self._single for finding in (*records(one), *presence(one)))
        found = tuple(dict.fromkeys((*own, *facts(whole, self.limits), *times)))
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
        return undecided and ruling.outcome == "cannot tell" and ruling.sessions < self.most


def failed(why: str) -> Ruling:
    """The ruling on a candidate that could not be measured where the base could."""
    finding = Finding("", "", "presence", "regression", why)
    return Ruling(finding.outcome, (finding,), compare((), ()), 0)


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


def _gravest(findings: Iterable[Finding], found: Comparison) -> Outcome:
    outcomes: set[Outcome] = {finding.outcome for finding in findings}
    if not found.arms:
        outcomes.add("nothing comparable")
    return next((outcome for outcome in EXIT_CODES if outcome in outcomes), "pass")
