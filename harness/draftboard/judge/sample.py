"""An arm's replies laid beside the baseline's, and their totals: what every metric is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftboard.record.records import Arm, Round, Trace
from draftboard.record.replies import by_key, key

Column = NDArray[np.float64]
Need = Literal["replies", "rounds", "baseline"]

RESAMPLES = 2000
MIN_PROMPTS = 4
"""With fewer prompts no interval is worth its name."""
SEED = 20260902
UNKNOWN = float("nan")
"""Inside this room an unknown total is NaN, so that whatever is computed from it is unknown as well."""


class Totals(NamedTuple):
    """Sums over replies. Every field is a float64 array of one shape: prompts, or resamples of them."""

    replies: Column
    tokens: Column
    emitted: Column
    wall_ms: Column
    decode_ms: Column
    rounds: Column
    drafting_rounds: Column
    proposed: Column
    accepted: Column
    emitted_deepspec: Column
    draft_ms: Column
    verify_ms: Column
    baseline_tokens: Column
    baseline_emitted: Column
    baseline_wall_ms: Column
    baseline_decode_ms: Column

    def pooled(self, rows: slice = slice(None)) -> Totals:
        """The sums over some rows, each as an array of shape [1]."""
        return Totals(*(column[rows].sum(keepdims=True) for column in self))


@dataclass(frozen=True, slots=True)
class Sample:
    """The replies of one arm that the baseline gave too, in the order of the baseline's prompts.

    `by_prompt` has one row per prompt (all its turns and repeats), `resampled` one per bootstrap resample.
    `gaps` says why the replies, their rounds or the baseline are unknown, where they are.
    """

    replies: tuple[Trace, ...]
    by_prompt: Totals
    resampled: Totals
    gaps: dict[Need, str]

    @property
    def prompts(self) -> int:
        """How many prompts are compared."""
        return len(self.by_prompt.replies)


def take_sample(baseline: Arm, arm: Arm) -> Sample:
    """Pairs the replies by prompt, turn and repeat. A failed arm has none: figures from the part of the
    prompts that it survived would not compare. Beside a failed baseline an arm keeps its own counts."""
    base = {} if baseline.error else by_key(baseline.traces)
    kept = [] if arm.error else [t for t in arm.traces if baseline.error or key(t) in base]
    place = {reply: index for index, reply in enumerate(base)}
    kept.sort(key=lambda trace: place.get(key(trace), 0))
    rows = [_row(trace, base.get(key(trace))) for trace in kept]
    matrix = _sum_by([trace.prompt_id for trace in kept], rows)
    resampled = _weights(len(matrix)) @ matrix
    return Sample(tuple(kept), Totals(*matrix.T), Totals(*resampled.T), _gaps(baseline, arm, kept))


def stopped_among_drafts(trace: Trace) -> bool:
    """True when the reply's last token is a stop token that the drafter had guessed."""
    rounds = trace.rounds
    return bool(trace.stop == "stop_token" and rounds and rounds.emitted[-1] == rounds.accepted[-1])


def _gaps(baseline: Arm, arm: Arm, kept: Sequence[Trace]) -> dict[Need, str]:
    gaps: dict[Need, str] = {}
    if arm.error:
        gaps["replies"] = f"the arm failed: {arm.error}"
    elif not kept:
        gaps["replies"] = "no reply to a prompt that the baseline answered too"
    hidden = next((trace for trace in kept if trace.rounds is None), None)
    if hidden:
        gaps["rounds"] = hidden.rounds_missing or "the engine does not show its rounds"
    if baseline.error:
        gaps["baseline"] = f"the baseline failed: {baseline.error}"
    return gaps


def _row(trace: Trace, base: Trace | None) -> tuple[float, ...]:
    own = (1, len(trace.token_ids), trace.emitted, trace.wall_ms, trace.decode_ms)
    return (*own, *_round_totals(trace), *_baseline_totals(base))


def _round_totals(trace: Trace) -> tuple[float, ...]:
    if trace.rounds is None:
        return (UNKNOWN,) * 7
    rounds = list(trace.rounds)
    return (
        len(rounds),
        sum(r.proposed > 0 for r in rounds),
        sum(r.proposed for r in rounds),
        sum(r.accepted for r in rounds),
        _emitted_deepspec(trace, rounds),
        sum(r.draft_ms + r.commit_ms for r in rounds),
        sum(r.verify_ms for r in rounds),
    )


def _emitted_deepspec(trace: Trace, rounds: Iterable[Round]) -> float:
    full = [r.hits + 1 for r in rounds]
    if stopped_among_drafts(trace) and trace.rounds:
        full[-1] = trace.rounds.accepted[-1]
    return sum(full)


def _baseline_totals(base: Trace | None) -> tuple[float, ...]:
    if base is None:
        return (UNKNOWN,) * 4
    return len(base.token_ids), base.emitted, base.wall_ms, base.decode_ms


def _sum_by(prompts: Sequence[str], rows: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """One row of sums per prompt, [prompts, fields], in the order in which they first appear."""
    order = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
    matrix = np.zeros((len(order), len(Totals._fields)))
    for prompt, row in zip(prompts, rows, strict=True):
        matrix[order[prompt]] += row
    return matrix


@lru_cache
def _weights(prompts: int) -> NDArray[np.float64]:
    """How often each prompt occurs in each resample, [resamples, prompts]; none of no prompts."""
    if prompts == 0:
        return np.zeros((0, 0))
    draws = np.random.default_rng(SEED).multinomial(prompts, np.full(prompts, 1 / prompts), RESAMPLES)
    return draws.astype(np.float64)
