"""One flat row per run and arm: what tables and pages are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftboard.errors import UserError
from draftboard.judge import telemetry_validity
from draftboard.judge.estimates import Estimate
from draftboard.judge.lossless import Kind, verdict_of
from draftboard.judge.metrics import METRICS
from draftboard.judge.sample import take_sample
from draftboard.judge.terms import Prediction, predict
from draftboard.judge.validity import reasons
from draftboard.record.records import Arm, Card, Generation, Json, Origin, RunRecord, Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """One arm of one run. A figure is None when unknown; `missing` says why, by the field's name.

    Times in ms, times of the terms in ms per round (T_target per token), speedups as factors, `prompts`
    counts those that were compared, `left_out` names those too long for the caches. `lossless` is a verdict
    and `valid` means that `reasons` is empty.
    """

    run: str
    arm: str
    created_utc: str
    suite: str
    indicative: bool
    testbed: str
    fingerprint: str
    device: str
    engine: str
    concurrency: int
    target: str
    revision: str | None
    dtype: str
    task: str
    task_title: str
    task_version: int
    task_sha256: str
    temperature: float
    sampling: Sampling
    generation: Generation
    drafter: str
    card: Card
    k: int | None
    options: dict[str, Json]
    baseline: bool
    origin: Origin | None
    weight_bytes: int
    weights_sha256: str | None
    prompts: int
    replies: int
    left_out: tuple[str, ...]
    acceptance_length: float | None
    acceptance_length_lo: float | None
    acceptance_length_hi: float | None
    acceptance_length_without_bonus: float | None
    acceptance_length_mean_of_means: float | None
    acceptance_length_deepspec: float | None
    acceptance_length_zlab: float | None
    acceptance_rate: float | None
    proposal_rate: float | None
    speedup: float | None
    speedup_lo: float | None
    speedup_hi: float | None
    speedup_end_to_end: float | None
    speedup_end_to_end_lo: float | None
    speedup_end_to_end_hi: float | None
    tokens_per_s: float | None
    t_target_ms: float | None
    t_draft_ms: float | None
    t_verify_ms: float | None
    t_other_ms: float | None
    draft_share: float | None
    ttft_ms: float | None
    draft_prefill_ms: float | None
    tpot_ms_p50: float | None
    tpot_ms_p90: float | None
    tpot_ms_p99: float | None
    prediction: Prediction
    lossless: Kind
    lossless_reason: str
    valid: bool
    reasons: tuple[str, ...]
    error: str | None
    missing: dict[str, str]


INTERVALS = ("acceptance_length", "speedup", "speedup_end_to_end")
"""The metrics whose interval has fields of its own."""


def rows(run: RunRecord, arms: Sequence[Arm]) -> list[Row]:
    """One row per arm of a run, failed arms included, in the run's order."""
    baseline = next((arm for arm in arms if arm.id == run.baseline), None)
    if baseline is None:
        raise UserError(f"run {run.id}: its baseline {run.baseline} is not among its arms")
    return [_row(run, baseline, arm, telemetry_validity.reasons(arms, arm)) for arm in arms]


def _row(run: RunRecord, baseline: Arm, arm: Arm, of_telemetry: tuple[str, ...]) -> Row:
    sample, verdict = take_sample(baseline, arm), verdict_of(baseline, arm, run.dtype)
    found = {metric.name: metric.of(sample) for metric in METRICS}
    against = (*reasons(run, baseline, arm, sample, verdict), *of_telemetry)
    return Row(
        **_of_run(run),
        **_of_arm(arm),
        baseline=arm.id == run.baseline,
        prompts=sample.prompts,
        replies=len(sample.replies),
        **_values(found),
        prediction=predict(sample),
        lossless=verdict.kind,
        lossless_reason=verdict.reason,
        valid=not against,
        reasons=against,
        missing=_missing(found),
    )


def _of_run(run: RunRecord) -> dict[str, Any]:
    """The fields that all rows of a run share."""
    return {
        "run": run.id,
        "created_utc": run.created_utc,
        "suite": run.suite,
        "indicative": run.indicative,
        "left_out": tuple(run.left_out),
        "testbed": run.testbed,
        "fingerprint": run.fingerprint,
        "device": run.environment.device,
        "engine": run.engine,
        "concurrency": run.concurrency,
        "target": run.target.id,
        "revision": run.target.revision,
        "dtype": run.dtype,
        "task": run.task.name,
        "task_title": run.task.title,
        "task_version": run.task.version,
        "task_sha256": run.task.sha256,
        "temperature": run.sampling.temperature,
        "sampling": run.sampling,
        "generation": run.generation,
    }


def _of_arm(arm: Arm) -> dict[str, Any]:
    """The fields that an arm's record gives as they are."""
    return {
        "arm": arm.id,
        "drafter": arm.drafter,
        "card": arm.card,
        "k": arm.k,
        "options": arm.options,
        "origin": arm.weights.origin,
        "weight_bytes": arm.weights.bytes,
        "weights_sha256": arm.weights.sha256,
        "error": arm.error,
    }


def _values(found: dict[str, Estimate]) -> dict[str, Any]:
    values: dict[str, Any] = {name: estimate.value for name, estimate in found.items()}
    for name in INTERVALS:
        values |= {f"{name}_lo": found[name].lo, f"{name}_hi": found[name].hi}
    return values


def _missing(found: dict[str, Estimate]) -> dict[str, str]:
    """Why fields are None; an unknown figure has no interval either, so it is named once."""
    reasons = {name: e.missing for name, e in found.items() if e.value is None and e.missing}
    bare = [name for name in INTERVALS if found[name].value is not None and found[name].lo is None]
    ends = {f"{name}_{end}": found[name].missing or "" for name in bare for end in ("lo", "hi")}
    return reasons | ends
