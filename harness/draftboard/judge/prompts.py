"""How the figures of an arm spread over its prompts, and over the length of the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from draftboard.judge.estimates import pace, ratio
from draftboard.judge.metrics import target_ms
from draftboard.judge.sample import Column, Sample
from draftboard.record.records import Trace

CONTEXT_BINS = 8
MIN_ROUNDS = 20
"""A bin of fewer rounds would show noise."""


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt with all its turns and repeats. `emitted` counts tokens; None is unknown."""

    prompt_id: str
    category: str
    emitted: int
    acceptance_length: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class ContextBin:
    """Rounds that began with `first` to `last` tokens of prompt and reply committed."""

    first: int
    last: int
    rounds: int
    acceptance_length: float


def by_prompt(sample: Sample) -> tuple[PromptFigures, ...]:
    """The acceptance length and the decode speedup of each prompt, in the run's order."""
    totals = sample.by_prompt
    categories = {trace.prompt_id: trace.category for trace in sample.replies}
    lengths = _known(ratio(totals.emitted, totals.rounds))
    speedups = _known(ratio(target_ms(totals), pace(totals.decode_ms, totals.emitted)))
    return tuple(
        PromptFigures(prompt, category, int(emitted), length, speedup)
        for (prompt, category), emitted, length, speedup in zip(
            categories.items(), totals.emitted, lengths, speedups, strict=True
        )
    )


def _known(column: Column) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in column]


def by_context(replies: Sequence[Trace], bins: int = CONTEXT_BINS) -> tuple[ContextBin, ...]:
    """The acceptance length against the length of the context, in bins of about equally many rounds; empty
    when no round is shown."""
    rounds = sorted(pair for trace in replies for pair in _rounds(trace))
    if not rounds:
        return ()
    parts = np.array_split(np.array(rounds), max(1, min(bins, len(rounds) // MIN_ROUNDS)))
    return tuple(
        ContextBin(int(part[0, 0]), int(part[-1, 0]), len(part), float(part[:, 1].mean())) for part in parts
    )


def _rounds(trace: Trace) -> Iterator[tuple[int, int]]:
    """(tokens committed before the round, tokens it emitted)."""
    context = len(trace.prompt_ids) + 1
    for emitted in trace.rounds.emitted if trace.rounds is not None else ():
        yield context, emitted
        context += emitted
