"""Is an arm's greedy output the baseline's? A verdict from the recorded comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftboard.record.records import Divergence, Losslessness

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
