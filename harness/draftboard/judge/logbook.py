"""A ruling as the line that the history keeps of it."""

from __future__ import annotations

from draftboard.judge.compare import ArmChange
from draftboard.judge.findings import place_of
from draftboard.judge.gate import Ruling
from draftboard.judge.ratios import Change
from draftboard.record.history import SCHEMA, Ruled, Said


def entry(ruling: Ruling, against: str, now_utc: str) -> Ruled | None:
    """The entry of a ruling against `against`; None when nothing was measured that it could be about."""
    found = ruling.comparison
    own = [*(arm.candidate for arm in found.arms), *found.new, *(pair.candidate for pair in found.refused)]
    if not own:
        return None
    run = own[0].run
    times = {(one.task, one.arm): one.change for one in ruling.findings if one.change is not None}
    return Ruled(
        schema=SCHEMA,
        created_utc=now_utc,
        against=against,
        commit=run.environment.git_sha,
        dirty=run.environment.git_dirty,
        suite=run.suite,
        fingerprint=run.fingerprint,
        testbed=run.testbed,
        outcome=ruling.outcome,
        sessions=ruling.sessions,
        arms=tuple(_said(arm, times.get(place_of(arm), arm.pace)) for arm in found.arms),
        because=tuple(
            " ".join(filter(None, (one.task, one.arm, f"{one.check}:", one.text)))
            for one in ruling.findings
            if one.outcome != "pass"
        ),
    )


def _said(arm: ArmChange, time: Change) -> Said:
    return Said(
        task=arm.candidate.task,
        arm=arm.candidate.name,
        arm_id=arm.candidate.arm.id,
        acceptance_length=arm["acceptance_length"].candidate,
        speedup=arm["speedup"].candidate,
        tokens_per_s=arm["tokens_per_s"].candidate,
        time_change=time.log,
        time_change_lo=time.lo,
        time_change_hi=time.hi,
        target=arm.candidate.run.target.id,
    )
