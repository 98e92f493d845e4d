"""Replies laid beside the baseline's: which belong together, and where they first differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from draftboard.record.records import Trace

ReplyKey = tuple[str, int, int]
"""Prompt, turn, repeat."""


def key(trace: Trace) -> ReplyKey:
    """What pairs a reply with the baseline's."""
    return trace.prompt_id, trace.turn, trace.repeat


def by_key(traces: Iterable[Trace]) -> dict[ReplyKey, Trace]:
    """The replies, to be found by what they answer."""
    return {key(trace): trace for trace in traces}


def first_difference(own: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The first index at which two replies differ; None when they are the same."""
    if own == other:
        return None
    shared = min(len(own), len(other))
    return next((i for i in range(shared) if own[i] != other[i]), shared)


def differing(baseline: Mapping[ReplyKey, Trace], traces: Iterable[Trace]) -> list[tuple[Trace, Trace, int]]:
    """(baseline reply, arm's reply, first differing position) of every pair that is not identical."""
    found = []
    for trace in traces:
        own = baseline.get(key(trace))
        position = None if own is None else first_difference(own.token_ids, trace.token_ids)
        if own is not None and position is not None:
            found.append((own, trace, position))
    return found


def token_at(trace: Trace, position: int) -> int | None:
    """The token at a position of a reply, None where the reply has ended."""
    return trace.token_ids[position] if position < len(trace.token_ids) else None
