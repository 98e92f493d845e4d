"""The decoding loop. Every drafter and the baseline run through it, and through nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftboard.drafter import Captured, Drafter
from draftboard.errors import UserError
from draftboard.measure.clock import Clock, Span
from draftboard.measure.sampling import Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Round, Rounds, Stop


class DrafterFault(Exception):
    """A drafter broke its contract; its arm fails and names the promise."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply and where its time went; see `records.Trace` for the meaning of the times."""

    token_ids: tuple[int, ...]
    rounds: Rounds
    prefill_ms: float
    draft_prefill_ms: float
    decode_ms: float
    wall_ms: float
    stop: Stop


@dataclass(slots=True)
class _OpenRound:
    """A round as measured; turned into a `Round` after the last one, when reading costs nothing."""

    tokens: Tensor
    confidence: Tensor | None
    hits: int
    emitted: int
    spans: tuple[Span, Span, Span]

    def close(self) -> Round:
        ids = tuple(self.tokens.tolist())
        certain = self.confidence
        times = [round(span.ms, 4) for span in self.spans]
        return Round(
            proposed=len(ids),
            accepted=min(self.hits, self.emitted),
            emitted=self.emitted,
            hits=self.hits,
            draft_ids=ids,
            draft_ms=times[0],
            verify_ms=times[1],
            commit_ms=times[2],
            confidence=None if certain is None else tuple(round(c, 4) for c in certain.tolist()),
        )


@torch.inference_mode()
def decode(
    target: TargetModel,
    drafter: Drafter,
    prompt_ids: Tensor,
    sampler: Sampler,
    clock: Clock,
    *,
    max_new_tokens: int,
) -> Reply:
    """One reply to prompt_ids int64 [n], at most `max_new_tokens` >= 1 long, every round recorded.

    Plain decoding is this loop with a drafter that guesses nothing. After a round the target's cache holds
    the committed tokens minus the newest. Raises UserError for no prompt, DrafterFault for a broken contract.
    """
    if len(prompt_ids) == 0:
        raise UserError("the prompt has no tokens, and a reply needs something to follow; give at least one")
    target.begin(drafter.taps)
    target.prepare(range(1, drafter.num_speculative_tokens + 2))
    if isinstance(drafter, Captured):
        drafter.prepare()
    began = clock.now_ms()
    with clock.span("prefill") as prefill:
        logits, features = target.prefill(prompt_ids)
        first, _ = sampler.draw(logits)
        ids = [*prompt_ids.tolist(), int(first)]
    with clock.span("draft_prefill") as draft_prefill:
        drafter.prefill(torch.cat([prompt_ids, first]), features)
    started = clock.now_ms()
    rounds, end = _rounds(target, drafter, ids, sampler, clock, len(prompt_ids) + max_new_tokens)
    ended = clock.now_ms()
    drafter.release()
    return Reply(
        token_ids=tuple(ids[len(prompt_ids) :]),
        rounds=Rounds.of([one.close() for one in rounds]),
        prefill_ms=round(prefill.ms, 4),
        draft_prefill_ms=round(draft_prefill.ms, 4),
        decode_ms=round(ended - started, 4),
        wall_ms=round(ended - began, 4),
        stop=end,
    )


def _rounds(
    target: TargetModel, drafter: Drafter, ids: list[int], sampler: Sampler, clock: Clock, cap: int
) -> tuple[list[_OpenRound], Stop]:
    """Rounds until a stop token or `cap` ids; `ids` grows, it always holds committed tokens only."""
    rounds: list[_OpenRound] = []
    last = torch.tensor(ids[-1:], device=target.device)
    while len(ids) < cap and ids[-1] not in target.stop_ids:
        with clock.span("draft") as drafting:
            limit = cap - len(ids) - 1
            draft = drafter.propose(limit)
        if len(draft.tokens) > limit:
            raise DrafterFault(
                f"propose({limit}) returned {len(draft.tokens)} guesses; expected at most {limit}"
            )
        with clock.span("verify") as verifying:
            logits, features = target.extend(torch.cat([last, draft.tokens]))
            verdict = sampler.verify(logits, draft)
            new = _cut_after_stop(verdict.ids, target.stop_ids)
            target.truncate(len(ids) + len(new) - 1)
        ids.extend(new)
        committed = verdict.tokens[: len(new)]
        with clock.span("commit") as committing:
            drafter.commit(committed, features[: len(new)])
        last = committed[-1:]
        spans = drafting, verifying, committing
        rounds.append(_OpenRound(draft.tokens, draft.confidence, verdict.hits, len(new), spans))
    return rounds, "stop_token" if ids[-1] in target.stop_ids else "length"


def _cut_after_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The tokens up to the first stop token, which is kept."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens
