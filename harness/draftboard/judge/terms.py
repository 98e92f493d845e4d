"""Where the speedup comes from: Speedup = E[L] * T_target / (T_draft + T_verify + T_other).

On the replies that the terms were taken from, this is an identity, since all decode time is in the sum and
all emitted tokens are in E[L]. Whether the terms say anything about other replies is tested on prompts that
were kept out of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from draftboard.judge.estimates import ratio
from draftboard.judge.metrics import BY_NAME, other_ms, target_ms
from draftboard.judge.sample import Sample, Totals

MIN_PROMPTS = 4
"""Two to fit on and two to predict: fewer say nothing."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of the formula: tokens per round, and milliseconds per token or per round."""

    acceptance_length: float
    t_target_ms: float
    t_draft_ms: float
    t_verify_ms: float
    t_other_ms: float

    @property
    def round_ms(self) -> float:
        """Time of a round."""
        return self.t_draft_ms + self.t_verify_ms + self.t_other_ms

    @property
    def speedup(self) -> float:
        """What the formula gives."""
        return self.acceptance_length * self.t_target_ms / self.round_ms

    @property
    def break_even(self) -> float:
        """The acceptance length at which a round costs what the baseline takes for its tokens."""
        return self.round_ms / self.t_target_ms


@dataclass(frozen=True, slots=True)
class Prediction:
    """The formula tried on the odd-numbered prompts.

    `predicted` takes all terms from the even-numbered prompts, `predicted_at_own_length` the times only and
    the acceptance length from the odd ones: what is left then is the error of the times. Residuals are
    predicted over measured, minus 1, in per cent. All None with the reason in `missing`.
    """

    predicted: float | None = None
    predicted_at_own_length: float | None = None
    measured: float | None = None
    residual_pct: float | None = None
    residual_at_own_length_pct: float | None = None
    missing: str | None = None


def fit(sample: Sample) -> Terms | None:
    """The terms over all replies; None where one of them is unknown (the metrics say why)."""
    return _terms(sample.by_prompt.pooled())


def predict(sample: Sample) -> Prediction:
    """Fits the terms on prompts 0, 2, 4, ... in the run's order and predicts the speedup of 1, 3, 5, ..."""
    if sample.prompts < MIN_PROMPTS:
        return Prediction(missing=f"{sample.prompts} prompts compared; the test needs {MIN_PROMPTS}")
    even = _terms(sample.by_prompt.pooled(slice(0, None, 2)))
    odd = _terms(sample.by_prompt.pooled(slice(1, None, 2)))
    if even is None or odd is None:
        return Prediction(missing=BY_NAME["t_verify_ms"].of(sample).missing or "a term is unknown")
    at_own_length = replace(even, acceptance_length=odd.acceptance_length).speedup
    return Prediction(
        predicted=even.speedup,
        predicted_at_own_length=at_own_length,
        measured=odd.speedup,
        residual_pct=100 * (even.speedup / odd.speedup - 1),
        residual_at_own_length_pct=100 * (at_own_length / odd.speedup - 1),
    )


def _terms(t: Totals) -> Terms | None:
    columns = (
        ratio(t.emitted, t.rounds),
        target_ms(t),
        ratio(t.draft_ms, t.rounds),
        ratio(t.verify_ms, t.rounds),
        other_ms(t),
    )
    terms = Terms(*(float(column[0]) for column in columns))
    values = (terms.acceptance_length, terms.t_target_ms, terms.round_ms)
    return terms if all(math.isfinite(v) and v > 0 for v in values) else None
