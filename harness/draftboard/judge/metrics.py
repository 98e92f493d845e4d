"""Every figure that is shown: its name, unit, definition and formula, in one table.

A formula is a function of totals, so the same line gives the figure and, over resampled prompts, its
interval. What cannot be known is None with the reason: never 0, NaN or infinite.
"""

from __future__ import annotations

import numpy as np

from draftboard.judge.estimates import Estimate, Metric, mean_over, pace, percentile_over, pooled, ratio
from draftboard.judge.sample import Column, Totals, take_sample
from draftboard.record.records import Arm, Trace

NO_ROUND = "no round was run"


def measure(baseline: Arm, arm: Arm) -> dict[str, Estimate]:
    """Every metric of `arm`, by name, over the replies that `baseline` gave too."""
    sample = take_sample(baseline, arm)
    return {metric.name: metric.of(sample) for metric in METRICS}


def _own_lengths(replies: tuple[Trace, ...]) -> list[float]:
    return [sum(t.rounds.emitted) / len(t.rounds) for t in replies if t.rounds]


def _full_lengths(replies: tuple[Trace, ...]) -> list[float]:
    return [sum(t.rounds.hits) / len(t.rounds) + 1 for t in replies if t.rounds]


def _first_token_ms(replies: tuple[Trace, ...]) -> list[float]:
    return [t.prefill_ms for t in replies]


def _draft_prefill_ms(replies: tuple[Trace, ...]) -> list[float]:
    return [t.draft_prefill_ms for t in replies]


def _token_ms(replies: tuple[Trace, ...]) -> list[float]:
    return [t.decode_ms / t.emitted for t in replies if t.emitted > 0 and t.decode_ms > 0]


def _tpot(percent: int) -> Metric:
    return Metric(
        f"tpot_ms_p{percent}",
        f"TPOT p{percent}",
        "ms",
        False,
        f"Time per output token: decode time over emitted tokens of each reply, percentile {percent} over "
        "the replies. It counts tokens, not rounds.",
        percentile_over(_token_ms, percent),
    )


def target_ms(t: Totals) -> Column:
    """T_target."""
    return pace(t.baseline_decode_ms, t.baseline_emitted)


def other_ms(t: Totals) -> Column:
    """T_other."""
    return ratio(t.decode_ms - t.draft_ms - t.verify_ms, t.rounds)


METRICS: tuple[Metric, ...] = (
    Metric(
        "acceptance_length",
        "E[L]",
        "tokens/round",
        True,
        "Acceptance length: tokens emitted by decoding rounds over the number of rounds, pooled over all "
        "replies. The target's own token counts, so a drafter that never hits scores exactly 1; the token "
        "that comes from the prefill does not.",
        pooled(lambda t: ratio(t.emitted, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "acceptance_length_without_bonus",
        "E[L] without bonus",
        "tokens/round",
        True,
        "Draft tokens committed over the number of rounds, pooled: the acceptance length without the "
        "target's own token.",
        pooled(lambda t: ratio(t.accepted, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "acceptance_length_mean_of_means",
        "E[L] mean of means",
        "tokens/round",
        True,
        "Each reply's own acceptance length, averaged over the replies. Short replies weigh as much as long "
        "ones, so it differs from the pooled figure.",
        mean_over(_own_lengths),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "acceptance_length_deepspec",
        "E[L] as DeepSpec counts",
        "tokens/round",
        True,
        "As DeepSpec's evaluation counts: verifier hits + 1 in every round, except a round that ends in a "
        "stop token among its drafts, which counts its committed drafts only; pooled.",
        pooled(lambda t: ratio(t.emitted_deepspec, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "acceptance_length_zlab",
        "E[L] as z-lab counts",
        "tokens/round",
        True,
        "As z-lab's first benchmark script counts: verifier hits + 1 in every round, tokens after a stop "
        "included; the mean of each reply, averaged over the replies. Its drafts may also run past the "
        "length cap; here they stop at the cap.",
        mean_over(_full_lengths),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "acceptance_rate",
        "acceptance rate",
        "",
        True,
        "Draft tokens committed over draft tokens verified, pooled. Unknown when nothing was proposed.",
        pooled(lambda t: ratio(t.accepted, t.proposed)),
        ("rounds",),
        "nothing was proposed",
    ),
    Metric(
        "proposal_rate",
        "proposal rate",
        "",
        None,
        "Share of the rounds in which the drafter proposed at least one token.",
        pooled(lambda t: ratio(t.drafting_rounds, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "speedup",
        "speedup",
        "x",
        True,
        "Decode speedup: the baseline's decode time per emitted token over the arm's, from sums over the "
        "same prompts, turns and repeats of one run. Below 1 the drafter costs more than it saves.",
        pooled(lambda t: ratio(target_ms(t), pace(t.decode_ms, t.emitted))),
        ("baseline",),
    ),
    Metric(
        "speedup_end_to_end",
        "end-to-end speedup",
        "x",
        True,
        "The baseline's wall time per reply token over the arm's, with the target's and the drafter's "
        "prefill included.",
        pooled(lambda t: ratio(pace(t.baseline_wall_ms, t.baseline_tokens), pace(t.wall_ms, t.tokens))),
        ("baseline",),
    ),
    Metric(
        "tokens_per_s",
        "tokens/s",
        "tokens/s",
        True,
        "Emitted tokens over decode time, from sums; one sequence at a time.",
        pooled(lambda t: ratio(np.full_like(t.emitted, 1000.0), pace(t.decode_ms, t.emitted))),
    ),
    Metric(
        "t_target_ms",
        "T_target",
        "ms",
        False,
        "The baseline's decode time per emitted token.",
        pooled(target_ms),
        ("baseline",),
    ),
    Metric(
        "t_draft_ms",
        "T_draft",
        "ms/round",
        False,
        "Time of the drafter per round: proposing and taking in the verdict.",
        pooled(lambda t: ratio(t.draft_ms, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "t_verify_ms",
        "T_verify",
        "ms/round",
        False,
        "Time of the target's verification forward and of the acceptance rule per round.",
        pooled(lambda t: ratio(t.verify_ms, t.rounds)),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "t_other_ms",
        "T_other",
        "ms/round",
        False,
        "Decode time that belongs to no span, per round: what the loop itself costs.",
        pooled(other_ms),
        ("rounds",),
        NO_ROUND,
    ),
    Metric(
        "draft_share",
        "draft share",
        "",
        False,
        "Share of the decode time that the drafter takes.",
        pooled(lambda t: ratio(t.draft_ms, t.decode_ms)),
        ("rounds",),
    ),
    Metric(
        "ttft_ms",
        "TTFT",
        "ms",
        False,
        "Time to first token: the target's prefill, which gives that token; median over the replies. The "
        "drafter takes the prompt in afterwards.",
        percentile_over(_first_token_ms, 50),
        otherwise="no reply was given",
    ),
    Metric(
        "draft_prefill_ms",
        "draft prefill",
        "ms",
        False,
        "Time in which the drafter takes in the prompt, between the first token and the first round; median "
        "over the replies. The end-to-end speedup counts it, the decode speedup does not.",
        percentile_over(_draft_prefill_ms, 50),
        otherwise="no reply was given",
    ),
    _tpot(50),
    _tpot(90),
    _tpot(99),
)

BY_NAME = {metric.name: metric for metric in METRICS}
