"""The end of a run, after all timing: losslessness, the cost of verifying, the text of rejected guesses."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import torch

from draftboard.measure import loading, lossless
from draftboard.measure.arms import LiveArm, rebuilt
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.opening import Opened
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.session import Session
from draftboard.measure.target import TargetModel
from draftboard.record.records import Divergence, Losslessness, Trace

VERIFY_ROWS = (1, 2, 4, 8, 16, 32)
"""Rows of a forward whose time is measured: one is plain decoding, K + 1 is a round's verification."""

FLOAT32_PROMPTS = 2
"""Prompts that a run in a narrower dtype repeats in float32."""

_VERIFY_REPEATS = 9


def close(session: Session, disturbed: Sequence[str]) -> None:
    """Writes the last entry of the journal: facts about the finished replies."""
    opened = session.opened
    traces = {arm.id: _traces(session, arm) for arm in opened.arms}
    session.journal.append(
        "closed",
        {
            "losslessness": _losslessness(opened, traces),
            "guess_pieces": {id: _guess_pieces(opened, own) for id, own in traces.items()},
            "verify_ms": {str(m): ms for m, ms in verify_curve(opened.target, _middle(traces)).items()},
            "disturbed": list(disturbed),
        },
    )


def verify_curve(
    target: TargetModel, context: int, rows: Sequence[int] = VERIFY_ROWS, repeats: int = _VERIFY_REPEATS
) -> dict[int, float]:
    """Median milliseconds of one forward by its number of rows, after `context` cached positions."""
    clock, context = Clock(target.device), max(1, min(context, target.max_context - max(rows)))
    with torch.inference_mode():
        target.begin(())
        target.prefill(torch.zeros(context, dtype=torch.long, device=target.device))
        curve = {
            m: _forward_ms(target, clock, context, m, repeats)
            for m in rows
            if context + m <= target.max_context
        }
        target.begin(())
    return curve


def _forward_ms(target: TargetModel, clock: Clock, context: int, rows: int, repeats: int) -> float:
    ids, times = torch.zeros(rows, dtype=torch.long, device=target.device), []
    for _ in range(repeats + 1):
        target.truncate(context)
        began = clock.now_ms()
        target.extend(ids)
        times.append(clock.now_ms() - began)
    return round(statistics.median(times[1:]), 4)


def _traces(session: Session, arm: LiveArm) -> list[Trace]:
    return [trace for place, trace in session.done.items() if place[0] == arm.id]


def _middle(traces: dict[str, list[Trace]]) -> int:
    """The median context length of all replies, halfway through each."""
    return int(
        statistics.median(
            len(trace.prompt_ids) + len(trace.token_ids) // 2 for own in traces.values() for trace in own
        )
    )


def _guess_pieces(opened: Opened, traces: Iterable[Trace]) -> dict[str, str]:
    """Text of every guess that was rejected, by id."""
    rounds = (one for trace in traces if trace.rounds is not None for one in trace.rounds)
    missed = sorted({token for one in rounds for token in one.draft_ids[one.accepted :]})
    return {str(token): opened.template.piece(token) for token in missed}


def _losslessness(opened: Opened, traces: dict[str, list[Trace]]) -> dict[str, Losslessness]:
    baseline = opened.baseline
    if opened.plan.sampling.temperature != 0:
        reason = "tokens were sampled, so two arms may differ; the acceptance rule is proved by the tests"
        return {arm.id: Losslessness(0, 0, (), not_checked=reason) for arm in opened.arms}
    compared = [arm for arm in opened.arms if arm is not baseline and traces[arm.id]]
    precise = _precise(opened, compared)
    proofs = _float32_proof(opened, precise, compared)
    own = {lossless.key(trace): trace for trace in traces[baseline.id]}
    facts = {baseline.id: Losslessness(0, 0, (), not_checked="this is the baseline")}
    for arm in opened.arms:
        if arm is not baseline:
            facts[arm.id] = _compare(opened, precise, own, traces[arm.id], proofs.get(arm.id, (0, 0)))
    return facts


def _precise(opened: Opened, compared: Sequence[LiveArm]) -> TargetModel | None:
    """The target in float32, loaded only when something needs it."""
    if opened.target.dtype is torch.float32:
        return opened.target
    if not compared:
        return None
    target = opened.target
    return loading.load_target(
        target.id,
        dtype=torch.float32,
        device=target.device,
        revision=target.revision,
        max_context=target.max_context,
    )


def _compare(
    opened: Opened,
    precise: TargetModel | None,
    baseline: dict[lossless.ReplyKey, Trace],
    traces: Sequence[Trace],
    proof: tuple[int, int],
) -> Losslessness:
    if precise is None or not traces:
        return Losslessness(0, 0, (), not_checked="the arm gave no reply")
    differing = lossless.differing(baseline, traces)
    divergences: list[Divergence] = [
        lossless.examine(opened.target, precise, own, trace, position) for own, trace, position in differing
    ]
    shared = sum(lossless.key(trace) in baseline for trace in traces)
    return Losslessness(shared, shared - len(divergences), tuple(divergences), *proof)


def _float32_proof(
    opened: Opened, precise: TargetModel | None, compared: Sequence[LiveArm]
) -> dict[str, tuple[int, int]]:
    """(replies compared, replies identical) in float32 by arm id, for a run in a narrower dtype."""
    if precise is None or precise is opened.target:
        return {}
    prompts = [
        torch.tensor(opened.template.ids(prompt.turns[:1], []), device=precise.device)
        for prompt in opened.prompts[:FLOAT32_PROMPTS]
    ]
    plain = _float32_replies(opened, precise, opened.baseline, prompts)
    proofs = {}
    for arm in compared:
        replies = _float32_replies(opened, precise, arm, prompts)
        proofs[arm.id] = (len(replies), sum(a == b for a, b in zip(plain, replies, strict=True)))
    return proofs


def _float32_replies(
    opened: Opened, precise: TargetModel, arm: LiveArm, prompts: Sequence[torch.Tensor]
) -> list[tuple[int, ...]]:
    sampler = Sampler(opened.plan.sampling, Randomness(0, precise.device))
    drafter = rebuilt(arm, opened.plan.plugins, precise, sampler)
    clock, cap = Clock(precise.device), opened.plan.max_new_tokens
    return [decode(precise, drafter, ids, sampler, clock, max_new_tokens=cap).token_ids for ids in prompts]
