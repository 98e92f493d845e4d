"""EAGLE-3 against its four reference implementations, and the faults that this comparison catches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard_drafters import checkpoints, eagle3
from draftboard_drafters._serial import SerialDrafter
from draftboard_drafters.checkpoints import Checkpoint
from golden import Case, Make, Run, case, check_logits, check_tokens, replay, runs
from serial_faults import FAULTS as SERIAL_FAULTS
from serial_faults import Fault, check_first_rounds, serial_changed, taps_moved

CASES = ("safeailab_eagle3", "specforge_eagle3", "speculators_eagle3", "deepspec_eagle3")


def maker(checkpoint: Checkpoint, k: int) -> Make:
    return lambda target, sampler: eagle3.drafter(checkpoint, target, sampler, k)


def loaded(name: str) -> Checkpoint:
    return checkpoints.load_as("eagle3", case(name).drafter)


class EndsAtStop:
    """DeepSpec's loop drafts nothing after a drafted stop token; ours does not know them."""

    def __init__(self, drafter: Any, stops: set[int]) -> None:
        self._drafter, self._stops = drafter, stops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, limit: int) -> Draft:
        draft = self._drafter.propose(limit)
        at = [index for index, token in enumerate(draft.tokens.tolist()) if token in self._stops]
        return Draft(draft.tokens[: at[0] + 1] if at else draft.tokens)


def built(which: Case, run: Run) -> Make:
    """By `build`, with the K of the case and, for DeepSpec, its loop's habit."""
    stops = set(run["stop_token_ids"] or ()) if which.name == "deepspec_eagle3" else set()
    k = which.expected["K"]
    return lambda target, sampler: EndsAtStop(
        eagle3.build(target, sampler, checkpoint=which.drafter, num_speculative_tokens=k), stops
    )


def without_rounds_after_stop(run: Run) -> Run:
    """SafeAILab's loop notices a stop token that is a correction one round late and runs that round."""
    stops = set(run["stop_token_ids"] or ())
    return {**run, "rounds": [one for one in run["rounds"] if one["anchor_id"] not in stops]}


@pytest.mark.parametrize(("name", "run_name"), runs(*CASES))
def test_golden_eagle3(name: str, run_name: str) -> None:
    which = case(name)
    run = without_rounds_after_stop(which.run(run_name))
    found = replay(which, run, built(which, run))
    check_tokens(run, found)
    compared = check_logits(which, run, found)
    assert compared > 0 or run_name not in ("prompt0", "prompt1", "prompt2")
    stated = which.run(run_name)["acceptance"]
    if len(run["rounds"]) == len(which.run(run_name)["rounds"]) and "stop" not in run_name:
        rounds = list(found.reply.rounds)[: len(run["rounds"])]
        assert sum(one.hits + 1 for one in rounds) / len(rounds) == pytest.approx(stated["acceptance_length"])


@pytest.mark.parametrize("name", CASES)
def test_golden_cache_holds_committed_rows_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a round drafts, there is one row for each position before the anchor, all of true features."""
    which, held, added = case(name), list[int](), list[int]()
    propose, absorb = SerialDrafter.propose, SerialDrafter._absorb

    def counted(self: SerialDrafter, limit: int) -> Draft:
        held.append(self.cache.length)
        return propose(self, limit)

    def counting(self: SerialDrafter, tokens: Tensor, features: Tensor) -> None:
        added.append(len(features))
        absorb(self, tokens, features)

    monkeypatch.setattr(SerialDrafter, "propose", counted)
    monkeypatch.setattr(SerialDrafter, "_absorb", counting)
    run = which.run("prompt1")
    replay(which, run, maker(loaded(name), which.expected["K"]))
    for length, rows, expected in zip(held, added, run["rounds"], strict=False):
        assert length == expected["anchor_pos"]
        assert rows == expected.get("feature_rows_consumed", rows)
        assert length - rows == expected.get("draft_cache_rows_before", length - rows)


def test_golden_trained_drafts_are_the_default() -> None:
    for name in ("speculators_eagle3", "deepspec_eagle3"):
        assert loaded(name).k == case(name).expected["K"]


def d2t_as_ids(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    shifted = checkpoint.tensors["d2t"] - torch.arange(checkpoint.draft_vocab_size)
    return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, "d2t": shifted})


def concat_reversed(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    """The feature before the embedding: the halves of what the attention's products read are swapped."""
    wide = [f"layers.0.self_attn.{name}_proj.weight" for name in "qkv"]
    swapped = {name: checkpoint.tensors[name].roll(checkpoint.geometry.hidden_size, 1) for name in wide}
    return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **swapped})


def taps_reversed(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    return dataclasses.replace(checkpoint, taps=checkpoint.taps_of(8)[::-1])


FAULTS: dict[str, tuple[str, Fault]] = {
    **{f"{what} in {name}": (name, fault) for what, fault in SERIAL_FAULTS.items() for name in CASES},
    "reference taps one too low": ("safeailab_eagle3", taps_moved(-1)),
    "reference taps one too high": ("safeailab_eagle3", taps_moved(1)),
    "taps of SpecForge one too low": ("specforge_eagle3", taps_moved(-1)),
    "taps of SpecForge one too high": ("specforge_eagle3", taps_moved(1)),
    "taps of speculators one too high": ("speculators_eagle3", taps_moved(1)),
    "taps of DeepSpec one too low": ("deepspec_eagle3", taps_moved(-1)),
    "taps fused in reverse": ("safeailab_eagle3", taps_reversed),
    "embedding and feature joined in reverse": ("safeailab_eagle3", concat_reversed),
    "d2t read as target ids": ("safeailab_eagle3", d2t_as_ids),
    "norm_before_residual off": ("speculators_eagle3", serial_changed(norm_before_residual=False)),
    "norm_before_residual on": ("deepspec_eagle3", serial_changed(norm_before_residual=True)),
    "normed state recycled": ("specforge_eagle3", serial_changed(recycle_normed=True)),
    "raw state recycled": ("speculators_eagle3", serial_changed(recycle_normed=False)),
    "norm before the head left out": ("safeailab_eagle3", serial_changed(norm_before_head=False)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_golden_catches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, inject = FAULTS[fault]
    which = case(name)
    make = maker(inject(monkeypatch, loaded(name)), which.expected["K"])
    with pytest.raises(AssertionError):
        check_first_rounds(which, make)


@pytest.mark.parametrize("name", CASES)
def test_golden_comparison_passes_without_a_fault(name: str) -> None:
    check_first_rounds(case(name), maker(loaded(name), case(name).expected["K"]))
