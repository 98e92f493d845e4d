"""DSpark against its reference implementation, with its three Markov heads and its confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints, dspark
from draftboard_drafters.checkpoints import Checkpoint
from draftboard_drafters.checkpoints.random import random_block_drafter
from golden import TOLERANCE, Make, Replay, Run, case, check_logits, check_tokens, opening, replay, runs
from test_golden_dflash import block_changed, check_deepspec_conventions, taps_moved
from tiny import tiny_target

VANILLA, GATED, RNN = (f"deepspec_dspark_{head}" for head in ("vanilla", "gated", "rnn"))
CASES = (VANILLA, GATED, RNN)


def loaded(name: str) -> Checkpoint:
    return checkpoints.load_as("dspark", case(name).drafter)


def maker(checkpoint: Checkpoint, threshold: float = 0.0) -> Make:
    return lambda target, sampler: dspark.DSpark(checkpoint, target, sampler, None, threshold)


@pytest.mark.parametrize(("name", "run_name"), runs(*CASES))
def test_golden_dspark(name: str, run_name: str) -> None:
    which = case(name)
    run = which.run(run_name)
    found = replay(
        which,
        run,
        lambda target, sampler: dspark.build(
            target, sampler, checkpoint=which.drafter, confidence_threshold=run["confidence_threshold"]
        ),
    )
    check_tokens(run, found)
    compared = check_logits(which, run, found)
    assert compared > 0 or run_name not in ("prompt0", "prompt1", "prompt2")
    check_before_the_cut(run, found)
    check_confidence(run, found)
    check_deepspec_conventions(run["acceptance"], list(found.reply.rounds)[: len(run["rounds"])])


def check_before_the_cut(run: Run, found: Replay) -> None:
    """All slots are drafted before a threshold cuts."""
    for number, expected in enumerate(run["rounds"]):
        assert found.recorder.seen(number).argmax(dim=-1).tolist() == expected["block_draft_ids"]


def check_confidence(run: Run, found: Replay) -> None:
    for number, expected in enumerate(run["rounds"]):
        confidence = found.drafts[number].confidence
        assert confidence is not None and confidence.dtype == torch.float32
        stated = torch.tensor(expected["confidence"])[: len(confidence)]
        torch.testing.assert_close(confidence, stated, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_golden_logits_before_the_markov_head(name: str) -> None:
    which = case(name)
    run = opening(which.run("prompt0"), 4)
    bases: list[Tensor] = []

    def make(target: Any, sampler: Any) -> Any:
        drafter = dspark.DSpark(loaded(name), target, sampler, None)
        head = drafter.vocabulary.logits

        def kept(hidden: Tensor) -> Tensor:
            bases.append(head(hidden))
            return bases[-1]

        drafter.vocabulary.logits = kept
        return drafter

    replay(which, run, make)
    for number in range(4):
        expected = which.logits[f"prompt0.round{number}.base_logits"]
        torch.testing.assert_close(bases[number], expected, atol=TOLERANCE, rtol=0)


Fault = Callable[[pytest.MonkeyPatch, Checkpoint], Checkpoint]


def markov_reads(wrong: Callable[[dspark.DSpark, Tensor], Tensor]) -> Fault:
    """The Markov head reads another token than the one before the slot."""

    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        read = dspark.DSpark._read

        def misled(self: dspark.DSpark, hidden: Tensor) -> Any:
            with patch.context() as inner:
                inner.setattr(dspark.F, "embedding", lambda token, table: table[wrong(self, token)])
                return read(self, hidden)

        patch.setattr(dspark.DSpark, "_read", misled)
        return checkpoint

    return fault


def without_bias(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    silent = {**checkpoint.tensors}
    silent["markov_head.markov_w2.weight"] = silent["markov_head.markov_w2.weight"] * 0
    return dataclasses.replace(checkpoint, tensors=silent)


def state_forgotten(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    latent = dspark.Recurrent.latent
    patch.setattr(dspark.Recurrent, "latent", lambda self, e, h, s: latent(self, e, h, s * 0))
    return checkpoint


def always_vanilla(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    patch.setitem(dspark.HEADS, "gated", dspark.Vanilla)
    return checkpoint


FAULTS: dict[str, tuple[str, Fault]] = {
    "taps one too low": (VANILLA, taps_moved(-1)),
    "taps one too high": (GATED, taps_moved(1)),
    "slots read one too late": (VANILLA, block_changed(anchor_predicts=False)),
    "Markov bias from the anchor": (VANILLA, markov_reads(lambda self, token: self.backbone.anchor)),
    "Markov bias from the mask": (VANILLA, markov_reads(lambda self, token: self.backbone.masks[:1])),
    "Markov bias left out": (VANILLA, without_bias),
    "gate left out": (GATED, always_vanilla),
    "state forgotten": (RNN, state_forgotten),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_golden_catches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, inject = FAULTS[fault]
    which = case(name)
    run = opening(which.run("prompt1"), 8)
    found = replay(which, run, maker(inject(monkeypatch, loaded(name))))
    with pytest.raises(AssertionError):
        check_tokens(run, found)
    with pytest.raises(AssertionError):
        check_logits(which, run, found)


def test_golden_catches_confidence_from_the_wrong_token() -> None:
    """c_k belongs to the token before slot k, not to the one it drafts."""
    which = case(VANILLA)
    run = opening(which.run("prompt1"), 4)

    class Peeking(dspark.DSpark):
        def _confidence(self, hidden: Tensor, embedded: Tensor) -> Tensor | None:
            return super()._confidence(hidden, embedded.roll(-1, dims=0))

    found = replay(which, run, lambda target, sampler: Peeking(loaded(VANILLA), target, sampler, None))
    with pytest.raises(AssertionError):
        check_confidence(run, found)


def random_drafter(temperature: float, threshold: float = 0.0, **block: Any) -> dspark.DSpark:
    """A random drafter after a short prompt on a tiny target."""
    target = tiny_target("qwen3")
    sampler = Sampler(Sampling(temperature), Randomness(3, target.device))
    options = {"block_size": 4, "anchor_predicts": True, "markov": "vanilla", "markov_rank": 4, **block}
    checkpoint = random_block_drafter("dspark", target, **options)
    drafter = dspark.DSpark(checkpoint, target, sampler, None, threshold)
    target.begin(drafter.taps)
    tokens = torch.tensor([3, 1, 4, 1, 5])
    drafter.prefill(tokens, target.prefill(tokens[:-1])[1])
    return drafter


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn"])
@torch.inference_mode()
def test_the_law_is_the_corrected_one(markov: str) -> None:
    """At temperature 1 the law of x_k is the softmax of U_k + bias after x_{k-1}, not that of U_k."""
    drafter = random_drafter(1.0, markov=markov)
    draft = drafter.propose(4)
    assert draft.probs is not None
    hidden = drafter.backbone.block()
    base, state = drafter.vocabulary.logits(hidden), hidden.new_zeros(1, 4)
    before = torch.cat([drafter.backbone.anchor, draft.tokens[:-1]])
    for k in range(4):
        latent, state = drafter.markov.latent(drafter.previous[before[k : k + 1]], hidden[k : k + 1], state)
        corrected = base[k] + drafter.bias(latent)[0]
        torch.testing.assert_close(draft.probs[k], corrected.softmax(-1), atol=1e-5, rtol=1e-4)
        assert (draft.probs[k] - base[k].softmax(-1)).abs().max() > 1e-3


@torch.inference_mode()
def test_a_cut_does_not_look_at_what_it_cuts() -> None:
    """Confidence k is the same whatever token k and those after it were drawn."""
    drafter = random_drafter(1.0, confidence="hidden and previous token")
    by_prefix: dict[tuple[int, ...], Tensor] = {}
    for _ in range(60):
        draft = drafter.propose(4)
        assert draft.confidence is not None
        for k in range(4):
            prefix = tuple(draft.tokens[:k].tolist())
            known = by_prefix.setdefault(prefix, draft.confidence[k])
            torch.testing.assert_close(known, draft.confidence[k])
    assert len({len(prefix) for prefix in by_prefix}) == 4


@torch.inference_mode()
def test_a_threshold_cuts_before_the_first_doubtful_draft() -> None:
    whole = random_drafter(0.0, confidence="hidden").propose(4)
    assert whole.confidence is not None
    for threshold in sorted(whole.confidence.tolist()) + [1.0]:
        sure = [c >= threshold for c in whole.confidence.tolist()]
        expected = sure.index(False) if False in sure else 4
        cut = random_drafter(0.0, threshold, confidence="hidden").propose(4)
        assert cut.tokens.tolist() == whole.tokens[:expected].tolist()
        assert cut.confidence is not None and len(cut.confidence) == expected


@pytest.mark.parametrize(
    ("threshold", "confidence", "message"),
    [(0.5, None, "has no confidence head"), (1.5, "hidden", "has a confidence between 0 and 1")],
)
def test_a_threshold_without_meaning_is_refused(threshold: float, confidence: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        random_drafter(0.0, threshold, confidence=confidence)
