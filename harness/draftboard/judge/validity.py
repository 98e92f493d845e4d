"""Reasons not to trust a row, computed from the facts."""

from __future__ import annotations

from collections.abc import Iterator

from draftboard.judge import telemetry_validity
from draftboard.judge.lossless import Verdict, miscounted
from draftboard.judge.sample import Sample
from draftboard.judge.soundness import unsound
from draftboard.record.records import CAPTURE_FAILED, Arm, RunRecord

MIN_PROMPTS = 16
"""Fewer prompts than this give figures that move with the choice of prompts."""


def reasons(run: RunRecord, baseline: Arm, arm: Arm, sample: Sample, verdict: Verdict) -> tuple[str, ...]:
    """Every reason against the row of `arm`, the measurement's own first; none means valid."""
    found = (*_failures(run, baseline, arm), *_replies(run, baseline, arm, sample))
    return (*arm.validity.reasons, *found, *_lossless(run, verdict, arm), *_size(run, sample))


def doubts(run: RunRecord, baseline: Arm, arm: Arm, *, turns: bool) -> Iterator[str]:
    """Reasons not to believe figures that a failure or the size of the run does not explain. `turns`: another
    run took turns with this one, which then counts as a disturbance and is none."""
    if arm.error or baseline.error:
        return
    if not turns:
        yield from (*arm.validity.reasons, *telemetry_validity.disturbances((baseline, arm), arm))
    yield from _contradictions(run, arm)
    yield from _of_the_baseline(run, baseline, arm)
    if wrong := miscounted(baseline, arm):
        yield f"the record contradicts itself: {wrong}"
    if arm.id != arm.baseline and run.sampling.temperature == 0:
        yield from _unproved(run, arm)


def _failures(run: RunRecord, baseline: Arm, arm: Arm) -> Iterator[str]:
    if arm.error:
        yield f"failed: {arm.error}"
    if baseline.error and baseline.id != arm.id:
        yield f"its baseline failed: {baseline.error}"
    if (run.target.graphs_missing or "").startswith(CAPTURE_FAILED):
        yield f"its target ran without CUDA graphs, plain decoding too: {run.target.graphs_missing}"
    lengths = {r.emitted for trace in baseline.traces for r in trace.rounds or ()}
    if lengths - {1}:
        yield f"its baseline emitted {max(lengths)} tokens in a round; plain decoding emits exactly 1"


def _replies(run: RunRecord, baseline: Arm, arm: Arm, sample: Sample) -> Iterator[str]:
    yield from _contradictions(run, arm)
    yield from _of_the_baseline(run, baseline, arm)
    if not arm.error and not baseline.error and len(sample.replies) != len(baseline.traces):
        yield f"only {len(sample.replies)} of the baseline's {len(baseline.traces)} replies are compared"
    if not arm.error and sample.prompts != len(run.prompt_ids):
        yield f"only {sample.prompts} of the run's {len(run.prompt_ids)} prompts were answered"
    rounds = [r for trace in sample.replies for r in trace.rounds or ()]
    drafts = arm.k != 0 and arm.id != arm.baseline
    if drafts and rounds and not any(r.proposed for r in rounds):
        yield f"nothing was proposed in any of {len(rounds)} rounds"


def _of_the_baseline(run: RunRecord, baseline: Arm, arm: Arm) -> Iterator[str]:
    if baseline.id != arm.id:
        yield from (f"its baseline: {problem}" for problem in _contradictions(run, baseline))


def _contradictions(run: RunRecord, arm: Arm) -> Iterator[str]:
    problems = unsound(run, arm)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield f"the record contradicts itself: {problems[0]}{more}"


def _lossless(run: RunRecord, verdict: Verdict, arm: Arm) -> Iterator[str]:
    if verdict.kind == "bug":
        yield f"not lossless: {verdict.reason}"
    if arm.id == arm.baseline or arm.error or run.sampling.temperature > 0:
        return
    if verdict.kind == "not checked":
        yield f"not compared with the baseline's output: {verdict.reason}"
    else:
        yield from _unproved(run, arm)


def _unproved(run: RunRecord, arm: Arm) -> Iterator[str]:
    if run.dtype != "float32" and not (arm.losslessness and arm.losslessness.float32_compared):
        yield f"no reply was repeated in float32 to back the {run.dtype} ones"


def _size(run: RunRecord, sample: Sample) -> Iterator[str]:
    if run.indicative:
        yield "indicative: the run is too short for its figures to be quoted"
    elif 0 < sample.prompts < MIN_PROMPTS:
        yield f"{sample.prompts} prompts; figures to be quoted need {MIN_PROMPTS}"
