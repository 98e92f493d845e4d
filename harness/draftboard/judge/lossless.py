"""Is an arm's greedy output the baseline's? A verdict from the recorded comparisons and the replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftboard.record.records import Arm, Divergence, Losslessness
from draftboard.record.replies import by_key, differing, key, token_at

Kind = Literal["exact", "tie", "bug", "not checked"]

MAX_TIE_ULP = 4.0

DEFINITION = (
    "exact: every greedy reply equals the baseline's, token by token. tie, in a dtype narrower than float32 "
    "only: where a reply first differs, both tokens are the target's two likeliest in float32 and their "
    f"logits differ by at most {MAX_TIE_ULP:g} units in the last place of the run's dtype, so that rounding "
    "decides. bug: anything else, and in float32 any difference."
)


@dataclass(frozen=True, slots=True)
class JudgedDivergence:
    """A first difference, and why it is a bug; None for a tie."""

    divergence: Divergence
    bug: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict, its reason in one line, and every first difference."""

    kind: Kind
    reason: str
    divergences: tuple[JudgedDivergence, ...] = ()


def judge_lossless(facts: Losslessness | None, dtype: str) -> Verdict:
    """`exact`, `tie`, `bug` or `not checked`, for a run in `dtype`: in float32 rounding excuses nothing."""
    if facts is None:
        return Verdict("not checked", "the comparison is not recorded")
    if facts.not_checked is not None or facts.compared == 0:
        return Verdict("not checked", facts.not_checked or "no reply was compared")
    judged = tuple(JudgedDivergence(d, _bug(d, dtype)) for d in facts.divergences)
    bug = _unexplained(facts) or next((j.bug for j in judged if j.bug), None)
    if bug:
        return Verdict("bug", bug, judged)
    if judged:
        widest = max(abs(d.gap_ulp or 0.0) for d in facts.divergences)
        reason = f"{len(judged)} of {facts.compared} replies part at a tie, at most {_ulp(widest)} apart"
        return Verdict("tie", reason, judged)
    return Verdict("exact", f"all {facts.compared} replies identical{_proof(facts)}")


def verdict_of(baseline: Arm, arm: Arm, dtype: str) -> Verdict:
    """The verdict on an arm of a run in `dtype`, its recorded comparison held against the replies themselves.
    The baseline has nothing to be compared with, and a failed arm can be shown to be wrong by the replies it
    gave, but not to be right."""
    if arm.id == arm.baseline:
        return Verdict("not checked", "the baseline is what the others are compared with")
    found = judge_lossless(arm.losslessness, dtype)
    if found.kind in ("exact", "tie"):
        found = _held_against_replies(found, baseline, arm)
    if arm.error and found.kind != "bug":
        return Verdict("not checked", f"the arm failed: {arm.error}", found.divergences)
    return found


def miscounted(baseline: Arm, arm: Arm) -> str | None:
    """What the recorded comparison says of the replies that they themselves do not; None where they agree or
    nothing was compared."""
    facts = arm.losslessness
    if facts is None or facts.not_checked is not None:
        return None
    base = by_key(baseline.traces)
    compared = sum(key(trace) in base for trace in arm.traces)
    identical = compared - len(differing(base, arm.traces))
    if (facts.compared, facts.identical) == (compared, identical):
        return None
    return (
        f"it tells of {facts.compared} compared replies, {facts.identical} of them identical, and holds"
        f" {compared} and {identical}"
    )


def _held_against_replies(found: Verdict, baseline: Arm, arm: Arm) -> Verdict:
    if untold := _untold(baseline, arm):
        return Verdict("bug", untold, found.divergences)
    if wrong := miscounted(baseline, arm):
        return Verdict("not checked", f"the record contradicts itself: {wrong}", found.divergences)
    return found


def _untold(baseline: Arm, arm: Arm) -> str | None:
    """The first difference between the replies that no recorded comparison tells of."""
    told = {_place_of(one) for one in arm.losslessness.divergences} if arm.losslessness else set()
    for own, other, position in differing(by_key(baseline.traces), arm.traces):
        tokens = token_at(own, position), token_at(other, position)
        if (*key(other), position, *tokens) not in told:
            place = f"{other.prompt_id} turn {other.turn} token {position}"
            return f"{place}: {_token(tokens[1])} for {_token(tokens[0])}, which no recorded comparison tells"
    return None


def _place_of(d: Divergence) -> tuple[str, int, int, int, int | None, int | None]:
    return d.prompt_id, d.turn, d.repeat, d.position, d.baseline_token, d.arm_token


def _proof(facts: Losslessness) -> str:
    return f", {facts.float32_identical} more in float32" if facts.float32_compared else ""


def _unexplained(facts: Losslessness) -> str | None:
    different = facts.compared - facts.identical
    if facts.float32_identical != facts.float32_compared:
        failed = facts.float32_compared - facts.float32_identical
        return f"{failed} of {facts.float32_compared} replies differ in float32"
    if different != len(facts.divergences):
        return f"{different} replies differ but {len(facts.divergences)} differences are recorded"
    return None


def _bug(d: Divergence, dtype: str) -> str | None:
    place = f"{d.prompt_id} turn {d.turn} token {d.position}"
    swap = f"{_token(d.arm_token)} for {_token(d.baseline_token)}"
    if {d.baseline_token, d.arm_token} != set(d.float32_top2):
        return f"{place}: {swap}, not the target's two likeliest tokens"
    if d.gap_ulp is None or not abs(d.gap_ulp) <= MAX_TIE_ULP:
        return f"{place}: {swap}, {_ulp(d.gap_ulp)} apart"
    return f"{place}: {swap}, {_ulp(d.gap_ulp)} apart in float32" if dtype == "float32" else None


def _token(token: int | None) -> str:
    return "an ended reply" if token is None else str(token)


def _ulp(gap: float | None) -> str:
    return "an unknown distance" if gap is None else f"{gap:.3g} ulp"
