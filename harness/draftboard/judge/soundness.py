"""Do the counts and times of a reply agree with each other? Every rule follows from their definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from draftboard.record.records import Arm, RunRecord, Trace

SLACK_MS, SLACK_SHARE = 0.05, 0.001
"""Two clocks may be read for one stretch of time; parts may exceed their whole by this much."""


def unsound(run: RunRecord, arm: Arm) -> tuple[str, ...]:
    """What contradicts itself in an arm's replies; empty for a sound record."""
    cap = run.generation.max_new_tokens
    seen = Counter((trace.prompt_id, trace.turn, trace.repeat) for trace in arm.traces)
    twice = (f"{p} turn {t} repeat {r}: recorded {n} times" for (p, t, r), n in seen.items() if n > 1)
    problems = (
        f"{trace.prompt_id} turn {trace.turn} repeat {trace.repeat}: {problem}"
        for trace in arm.traces
        for problem in (*_reply(trace, cap), *_times(trace), *_round_problems(trace))
    )
    return (*twice, *problems)


def _reply(trace: Trace, cap: int) -> Iterator[str]:
    if not 1 <= len(trace.token_ids) <= cap:
        yield f"{len(trace.token_ids)} tokens, expected 1 to {cap}"
    if len(trace.pieces) != len(trace.token_ids):
        yield f"{len(trace.pieces)} pieces for {len(trace.token_ids)} tokens"
    if trace.rounds is None and trace.rounds_missing is None:
        yield "no rounds and no reason why"


def _times(trace: Trace) -> Iterator[str]:
    parts = (trace.prefill_ms, trace.draft_prefill_ms, trace.decode_ms)
    if min(parts) < 0:
        yield f"a negative time among {parts}"
    if _exceeds(sum(parts), trace.wall_ms):
        yield f"its parts take {sum(parts):.3f} ms, its whole {trace.wall_ms:.3f} ms"


def _round_problems(trace: Trace) -> Iterator[str]:
    rounds = trace.rounds
    if rounds is None:
        return
    if sum(rounds.emitted) != trace.emitted:
        yield f"rounds emitted {sum(rounds.emitted)} tokens, the reply has {trace.emitted} after the first"
    spans = sum((*rounds.draft_ms, *rounds.verify_ms, *rounds.commit_ms))
    if _exceeds(spans, trace.decode_ms):
        yield f"its spans take {spans:.3f} ms, its decoding {trace.decode_ms:.3f} ms"
    place = 1  # the prefill gave the first token
    for index, r in enumerate(rounds):
        if not 0 <= r.accepted <= r.hits <= r.proposed == len(r.draft_ids):
            yield f"round {index}: accepted {r.accepted}, hits {r.hits}, proposed {r.proposed} do not nest"
        if r.emitted - r.accepted not in (0, 1) or r.emitted < 1:
            yield f"round {index}: emitted {r.emitted} with {r.accepted} accepted"
        if r.emitted == r.accepted and index + 1 < len(rounds):
            yield f"round {index}: no token of the target's, though it is not the last"
        said = trace.token_ids[place : place + r.accepted]
        place += r.emitted
        if tuple(r.draft_ids[: r.accepted]) != said:
            yield f"round {index}: its accepted guesses are not the reply's tokens"
        if r.emitted > r.accepted != r.hits:
            yield f"round {index}: {r.hits} hits, {r.accepted} accepted and the target's token behind them"


def _exceeds(parts_ms: float, whole_ms: float) -> bool:
    return parts_ms > whole_ms * (1 + SLACK_SHARE) + SLACK_MS
