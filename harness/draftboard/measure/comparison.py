"""Losslessness of a finished run: every reply beside the baseline's, and the proof in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from draftboard.measure import loading, lossless
from draftboard.measure.arms import LiveArm, describe, rebuilt
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.events import Begun, Send
from draftboard.measure.opening import Opened
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record import replies
from draftboard.record.records import Losslessness, Trace

FLOAT32_PROMPTS = 2
"""Prompts that a run in a narrower dtype repeats in float32."""

SAMPLED = "tokens were sampled, so two arms may differ; the acceptance rule is proved by the tests"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one arm: the facts, and why they fall short of what was meant to be checked."""

    facts: Losslessness
    shortfalls: tuple[str, ...] = ()


def compare(opened: Opened, traces: Mapping[str, Sequence[Trace]], send: Send) -> dict[str, Finding]:
    """Findings by arm id. Whatever goes wrong in here costs a check and never the run's replies."""
    if opened.plan.sampling.temperature != 0:
        return {arm.id: _unchecked(SAMPLED) for arm in opened.arms}
    precise = _precise(opened)
    baseline = replies.by_key(traces[opened.baseline.id])
    findings = {opened.baseline.id: _unchecked("this is the baseline")}
    for arm in opened.arms:
        if arm is not opened.baseline:
            findings[arm.id] = _finding(opened, precise, baseline, traces[arm.id])
    if isinstance(precise, TargetModel) and precise is not opened.target:
        _prove(opened, precise, findings, send)
    return findings


def _unchecked(reason: str) -> Finding:
    return Finding(Losslessness(0, 0, (), not_checked=reason))


def _precise(opened: Opened) -> TargetModel | str:
    """The target in float32, on the CPU where the device has no room, or why there is none."""
    target = opened.target
    if target.dtype is torch.float32:
        return target
    for device in dict.fromkeys((target.device, torch.device("cpu"))):
        try:
            return loading.load_target(
                opened.plan.target,
                dtype=torch.float32,
                device=device,
                revision=opened.plan.revision,
                max_context=target.max_context,
            )
        except Exception as error:
            reason = describe(error)
    return f"the target could not be loaded in float32: {reason}"


def _finding(
    opened: Opened,
    precise: TargetModel | str,
    baseline: Mapping[replies.ReplyKey, Trace],
    traces: Sequence[Trace],
) -> Finding:
    if not traces:
        return _unchecked("the arm gave no reply")
    differing = replies.differing(baseline, traces)
    if isinstance(precise, str):
        return _unchecked(precise) if differing else Finding(_counts(baseline, traces, 0), (precise,))
    divergences = tuple(lossless.examine(opened.target, precise, *one) for one in differing)
    return Finding(replace(_counts(baseline, traces, len(divergences)), divergences=divergences))


def _counts(
    baseline: Mapping[replies.ReplyKey, Trace], traces: Sequence[Trace], different: int
) -> Losslessness:
    shared = sum(replies.key(trace) in baseline for trace in traces)
    return Losslessness(shared, shared - different, ())


def _prove(opened: Opened, precise: TargetModel, findings: dict[str, Finding], send: Send) -> None:
    """Repeats some prompts in float32 with every arm that still works."""
    ids = [
        torch.tensor(opened.template.ids(prompt.turns[:1], []), device=precise.device)
        for prompt in opened.prompts[:FLOAT32_PROMPTS]
    ]
    plain = _replies(opened, precise, opened.baseline, ids)
    for index, arm in enumerate(opened.arms):
        if arm is opened.baseline or arm.error is not None:
            continue
        send(Begun(index))
        found = findings[arm.id]
        try:
            given = _replies(opened, precise, arm, ids)
        except Exception as error:
            reason = f"the float32 proof failed: {describe(error)}"
            findings[arm.id] = replace(found, shortfalls=(*found.shortfalls, reason))
            continue
        same = sum(a == b for a, b in zip(plain, given, strict=True))
        facts = replace(found.facts, float32_compared=len(given), float32_identical=same)
        findings[arm.id] = replace(found, facts=facts)


def _replies(
    opened: Opened, precise: TargetModel, arm: LiveArm, prompts: Sequence[torch.Tensor]
) -> list[tuple[int, ...]]:
    sampler = Sampler(opened.plan.sampling, Randomness(0, precise.device))
    drafter = rebuilt(arm, opened.plan.plugins, precise, sampler)
    clock, cap = Clock(precise.device), opened.plan.max_new_tokens
    return [decode(precise, drafter, ids, sampler, clock, max_new_tokens=cap).token_ids for ids in prompts]
