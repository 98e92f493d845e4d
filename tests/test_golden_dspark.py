"""DSpark against its reference implementation, with its three Markov heads and its confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard_drafters import _markov, checkpoints, dspark
from draftboard_drafters.checkpoints import Checkpoint
from golden import TOLERANCE, Make, Replay, Run, case, check_logits, check_tokens, opening, replay, runs
from test_golden_dflash import block_changed, check_deepspec_conventions, taps_moved

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


@pytest.mark.parametrize("name", CASES)
def test_golden_dspark_in_speculators_layout(name: str, tmp_path: Path) -> None:
    """The same weights written for speculators draft the same."""
    which = case(name)
    checkpoints.export(loaded(name), tmp_path, "speculators")
    run = opening(which.run("prompt1"), 6)
    found = replay(which, run, maker(checkpoints.load_as("dspark", str(tmp_path))))
    check_tokens(run, found)
    assert check_logits(which, run, found) > 0
    check_confidence(run, found)


Fault = Callable[[pytest.MonkeyPatch, Checkpoint], Checkpoint]


def markov_reads(wrong: Callable[[dspark.DSpark, Tensor], Tensor]) -> Fault:
    """The Markov head reads another token than the one before the slot."""

    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        read = dspark.DSpark._read

        def misled(self: dspark.DSpark, *args: Any) -> Any:
            with patch.context() as inner:
                inner.setattr(dspark.F, "embedding", lambda token, table: table[wrong(self, token)])
                return read(self, *args)

        patch.setattr(dspark.DSpark, "_read", misled)
        return checkpoint

    return fault


def without_bias(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    silent = {**checkpoint.tensors}
    silent["markov_head.markov_w2.weight"] = silent["markov_head.markov_w2.weight"] * 0
    return dataclasses.replace(checkpoint, tensors=silent)


def state_forgotten(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    latent = _markov.Recurrent.latent
    patch.setattr(_markov.Recurrent, "latent", lambda self, e, h, s: latent(self, e, h, s * 0))
    return checkpoint


def always_vanilla(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    patch.setitem(_markov.HEADS, "gated", _markov.Vanilla)
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


@torch.inference_mode()
def test_golden_a_reduced_vocabulary_is_corrected_and_scattered() -> None:
    """W1 has a row for every target id, W2 and the head one for every draft id."""
    which, known = case(VANILLA), torch.arange(3, 256, 5)
    run, full = which.run("prompt1"), loaded(VANILLA)
    rows = {n: full.tensors[n][known] for n in ("lm_head.weight", "markov_head.markov_w2.weight")}
    tensors = {**full.tensors, **rows, "d2t": known - torch.arange(len(known))}
    reduced = dataclasses.replace(full, draft_vocab_size=len(known), tensors=tensors)
    found = replay(which, opening(run, 2), maker(reduced))
    base = which.logits["prompt1.round0.draft_logits"][0, known]
    torch.testing.assert_close(found.recorder.seen(0)[0], base, atol=TOLERANCE, rtol=0)
    first = found.drafts[0].tokens
    assert int(first[0]) == int(known[base.argmax()])
    assert set(first.tolist()) <= set(known.tolist())
    w1, w2 = (full.tensors[f"markov_head.markov_{w}.weight"].float() for w in ("w1", "w2"))
    shift = (w1[first[0]] - w1[run["rounds"][0]["block_draft_ids"][0]]) @ w2[known].T
    second = which.logits["prompt1.round0.draft_logits"][1, known] + shift
    torch.testing.assert_close(found.recorder.seen(0)[1], second, atol=TOLERANCE, rtol=0)
