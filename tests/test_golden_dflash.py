"""DFlash against its three reference implementations, and the faults that this comparison catches."""

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
from draftboard_drafters import checkpoints, dflash
from draftboard_drafters._block import Backbone
from draftboard_drafters._layers import Rotary, Rows, Sight, Vocabulary
from draftboard_drafters.checkpoints import Checkpoint
from golden import Case, Make, Replay, Run, case, check_logits, check_tokens, opening, replay, runs

ZLAB = ("zlab_dflash_b8", "zlab_dflash_b4")
CASES = (*ZLAB, "deepspec_dflash", "speculators_dflash")


def maker(checkpoint: Checkpoint, k: int | None = None) -> Make:
    return lambda target, sampler: dflash.DFlash(checkpoint, target, sampler, k)


def loaded(name: str) -> Checkpoint:
    return checkpoints.load_as("dflash", case(name).drafter)


def built(which: Case, run: Run) -> Make:
    """By `build`, with the K of the run."""
    slots = run.get("block_size_used")
    k = None if slots is None else slots - 1
    return lambda target, sampler: dflash.build(
        target, sampler, checkpoint=which.drafter, num_speculative_tokens=k
    )


@pytest.mark.parametrize(("name", "run_name"), runs(*CASES))
def test_golden_dflash(name: str, run_name: str) -> None:
    which = case(name)
    run = which.run(run_name)
    found = replay(which, run, built(which, run))
    check_tokens(run, found)
    compared = check_logits(which, run, found)
    assert compared > 0 or run_name not in ("prompt0", "prompt1", "prompt2")
    check_conventions(run, found)


def check_conventions(run: Run, found: Replay) -> None:
    """Each code base's own acceptance figures, from the rounds of the engine."""
    stated, rounds = run["acceptance"], list(found.reply.rounds)[: len(run["rounds"])]
    if "acceptance_length_upstream" in stated:
        lengths = [one.hits + 1 for one in rounds]
        assert lengths == stated["acceptance_lengths_upstream"]
        assert sum(lengths) / len(lengths) == pytest.approx(stated["acceptance_length_upstream"])
    elif "verify_rate" in stated:
        check_deepspec_conventions(stated, rounds)
    else:
        assert stated["acceptance_length"] == pytest.approx(sum(r.accepted + 1 for r in rounds) / len(rounds))


def check_deepspec_conventions(stated: dict[str, Any], rounds: list[Any]) -> None:
    """A stop token among the drafts ends both the accepted and the proposed count of its round."""
    emitted = [one.emitted for one in rounds]
    proposed = [one.accepted if one.emitted == one.accepted else one.proposed for one in rounds]
    assert emitted == stated["acceptance_lengths_upstream"]
    assert proposed == stated["proposal_lengths_upstream"]
    assert sum(emitted) / len(rounds) == pytest.approx(stated["acceptance_length"])
    assert sum(emitted) / (sum(proposed) + len(rounds)) == pytest.approx(stated["verify_rate"])
    for position, rate in enumerate(stated["accept_rates_by_position"]):
        reached = sum(count > position for count in proposed)
        passed = sum(one.accepted > position for one in rounds)
        assert rate == pytest.approx(passed / reached if reached else 0.0)


@pytest.mark.parametrize("name", ZLAB)
def test_golden_context_grows_with_the_text(name: str) -> None:
    """When a round drafts, its context is every position before the anchor, each fed once."""
    which = case(name)
    run = which.run("prompt1")
    lengths: list[int] = []

    class Counted(dflash.DFlash):
        def propose(self, limit: int) -> Any:
            lengths.append(self.backbone.cache.length)
            return super().propose(limit)

    replay(which, run, lambda target, sampler: Counted(loaded(name), target, sampler, None))
    for length, expected in zip(lengths, run["rounds"], strict=False):
        assert length == expected["anchor_pos"]
        assert length == expected["first_context_position"] + expected["context_rows_added"]


Fault = Callable[[pytest.MonkeyPatch, Checkpoint], Checkpoint]


def taps_moved(by: int) -> Fault:
    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        return dataclasses.replace(checkpoint, taps=tuple(tap + by for tap in checkpoint.taps))

    return fault


def block_changed(**changes: Any) -> Fault:
    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        assert checkpoint.parallel is not None
        return dataclasses.replace(checkpoint, parallel=dataclasses.replace(checkpoint.parallel, **changes))

    return fault


def concat_reversed(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    return dataclasses.replace(checkpoint, taps=checkpoint.taps[::-1])


def hidden_norm_skipped(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    init = Backbone.__init__

    def without(self: Backbone, *args: Any) -> None:
        init(self, *args)
        patch.setattr(self, "context_norm", lambda x: x)

    patch.setattr(Backbone, "__init__", without)
    return checkpoint


def block_turned(by: int) -> Fault:
    """The block's rows at positions one off, the context's at their own."""

    def fault(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
        block, at = Backbone.block, Rotary.at

        def shifted(self: Backbone) -> Tensor:
            with patch.context() as inner:
                inner.setattr(Rotary, "at", lambda s, p: at(s, slice(p.start + by, p.stop + by)))
                inner.setattr(Rows, "start", None)  # a compiled call reads its angles elsewhere
                return block(self)

        patch.setattr(Backbone, "block", shifted)
        return checkpoint

    return fault


def block_kept(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    """The mask slots' keys and values stay in the cache."""
    block = Backbone.block

    def keeping(self: Backbone) -> Tensor:
        hidden = block(self)
        self.cache.length += 1
        return hidden

    patch.setattr(Backbone, "block", keeping)
    return checkpoint


def d2t_as_ids(patch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> Checkpoint:
    init = Vocabulary.__init__

    def absolute(self: Vocabulary, target: Any, embedding: Any, head: Any, target_ids: Tensor) -> None:
        init(self, target, embedding, head, target_ids - torch.arange(len(target_ids)))

    patch.setattr(Vocabulary, "__init__", absolute)
    return checkpoint


FAULTS: dict[str, tuple[str, Fault]] = {
    "taps one too low": ("zlab_dflash_b8", taps_moved(-1)),
    "taps one too high": ("zlab_dflash_b8", taps_moved(1)),
    "taps of DeepSpec one too low": ("deepspec_dflash", taps_moved(-1)),
    "taps of speculators one too high": ("speculators_dflash", taps_moved(1)),
    "concat order reversed": ("zlab_dflash_b8", concat_reversed),
    "slots read one too early": ("zlab_dflash_b8", block_changed(anchor_predicts=True)),
    "slots read one too late": ("deepspec_dflash", block_changed(anchor_predicts=False)),
    "wrong mask token": ("zlab_dflash_b8", block_changed(mask_id=254)),
    "block causal": ("zlab_dflash_b8", block_changed(sights=(Sight(causal=True),) * 3)),
    "block one position early": ("zlab_dflash_b8", block_turned(-1)),
    "block one position late": ("zlab_dflash_b8", block_turned(1)),
    "hidden norm skipped": ("zlab_dflash_b8", hidden_norm_skipped),
    "block left in the cache": ("zlab_dflash_b8", block_kept),
    "d2t read as target ids": ("speculators_dflash", d2t_as_ids),
}


@pytest.mark.filterwarnings("ignore:.*it taps the last block")
@pytest.mark.parametrize("fault", FAULTS)
def test_golden_catches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, inject = FAULTS[fault]
    which = case(name)
    run = opening(which.run("prompt1"), 6)
    found = replay(which, run, maker(inject(monkeypatch, loaded(name))))
    with pytest.raises(AssertionError):
        check_tokens(run, found)
    with pytest.raises(AssertionError):
        check_logits(which, run, found)


def test_golden_comparison_passes_without_a_fault() -> None:
    """What the faults are injected into passes as it is."""
    for name in {name for name, _ in FAULTS.values()}:
        which = case(name)
        run = opening(which.run("prompt1"), 6)
        found = replay(which, run, maker(loaded(name)))
        check_tokens(run, found)
        check_logits(which, run, found)


@torch.inference_mode()
def test_golden_a_drawn_block_comes_with_its_law() -> None:
    """At temperature 1 each row is the softmax of the recorded logits, scattered to the target's ids."""
    which = case("speculators_dflash")
    run, target = which.run("prompt1"), which.target
    drafter = maker(loaded(which.name))(target, Sampler(Sampling(1.0), Randomness(0, target.device)))
    target.begin(drafter.taps)
    tokens = torch.tensor([*run["prompt_ids"], run["rounds"][0]["anchor_id"]])
    drafter.prefill(tokens, target.prefill(tokens[:-1])[1])
    draft = drafter.propose(3)
    offsets = loaded(which.name).tensors["d2t"]
    expected = torch.zeros(3, 256)
    expected[:, offsets + torch.arange(160)] = which.logits["prompt1.round0.draft_logits"][:3].softmax(-1)
    assert draft.probs is not None and draft.probs.shape == (3, 256)
    torch.testing.assert_close(draft.probs, expected, atol=1e-3, rtol=0)
    assert bool((expected.gather(1, draft.tokens[:, None]) > 0).all())


def test_golden_more_drafts_than_trained_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"num_speculative_tokens is 8.*trained for blocks of 7.*choose 1 to 7"
    ):
        maker(loaded("zlab_dflash_b8"), 8)(case("zlab_dflash_b8").target, None)  # type: ignore[arg-type]
