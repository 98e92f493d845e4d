"""Drafters whose work is replayed from graphs: the eager drafts, laws and replies; eager after a failure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Captured, Draft
from draftboard.measure import arms, graphs, rehearsal, runner
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness
from draftboard.measure.target import TargetModel
from draftboard.record.records import Arm
from draftboard.record.store import Store, load
from draftboard.record.suites import ArmSpec
from draftboard_drafters import dspark
from draftboard_drafters._layers import Places
from shipped import ALL_K, GUESSING, caches, maker
from tape import Tape, TapeRecorder, Watch
from test_host_waits import Reads
from tiny import tiny_target
from tiny_folder import save_task, small_plan
from watched import PROMPT

pytestmark = pytest.mark.usefixtures("torch_only")

OWN = ["dflash", "dspark", "eagle3", "mtp"]
"""Drafters that capture work of their own."""
VERDICTS = (rehearsal.all_kept, rehearsal.none_kept, rehearsal.some_kept)
PROMPTS = ([5], [3, 1, 4, 1, 5], list(range(30)))
ROUNDS = 10


class Eager:
    """Captures nothing: what it hands back computes everything anew, over the same buffers and widths."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


Make = Callable[[], Any]


def on(recorder: graphs.Recorder | None, make: Make, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A drafter that captures with `recorder`, over 16, 32, .. positions."""
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "recorder_for", lambda device: recorder)
        patch.setattr(graphs, "LEAST_WIDTH", 16)
        return make()


def making(name: str, k: int, target: TargetModel, temperature: float = 0.0) -> Make:
    return lambda: maker(name, k)(target, rehearsal.sampler(target, temperature))


@torch.inference_mode()
def told(drafter: Any, target: TargetModel, prompt: list[int], seed: int) -> list[Draft]:
    """The drafts of a few rounds; what is committed depends on the seed and on the guesses."""
    drafter.prepare()
    drafter.sampler.restart(Randomness(seed, target.device))
    dice, drafts = random.Random(seed), []
    with rehearsal.Walk(drafter, target, prompt) as walk:
        for number in range(ROUNDS):
            limit = rehearsal.MANY if number % 4 else number // 4
            drafts.append(walk.propose(limit))
            kept = dice.choice(VERDICTS)(rehearsal.ids(drafts[-1]), dice)
            walk.commit(kept)
    return drafts


def same(one: Any, other: Any) -> bool:
    return one is other is None or torch.equal(one, other)


def assert_same_bits(found: list[Draft], expected: list[Draft]) -> None:
    for draft, other in zip(found, expected, strict=True):
        for part in dataclasses.fields(Draft):
            assert same(getattr(draft, part.name), getattr(other, part.name)), part.name


def assert_close(found: list[Draft], expected: list[Draft]) -> None:
    """The same guesses; laws and confidence up to the rounding of sums of another length, which a chain of
    random weights makes larger from guess to guess."""
    for draft, other in zip(found, expected, strict=True):
        assert torch.equal(draft.tokens, other.tokens)
        torch.testing.assert_close(draft.probs, other.probs, atol=1e-4, rtol=1e-2)
        torch.testing.assert_close(draft.confidence, other.confidence, atol=1e-4, rtol=1e-2)


def test_the_four_and_the_draft_model_are_captured() -> None:
    """The tests below would hold for nothing otherwise."""
    target = tiny_target()
    found = [name for name in GUESSING if isinstance(making(name, 2, target)(), Captured)]
    assert found == sorted([*OWN, "draft_model"])


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("k", "temperature"), [*((k, 1.0) for k in ALL_K), (1, 0.0), (5, 0.0)])
def test_replayed_drafts_are_the_eager_ones(
    name: str, k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what the same operators say anew, and up to rounding what eager code says of fewer columns;
    over rollbacks, from text to text, in caches that outgrow one width after the other."""
    target, tapes = tiny_target(), TapeRecorder()
    make = making(name, k, target, temperature)
    replayed, anew, plain = (on(recorder, make, monkeypatch) for recorder in (tapes, Eager(), None))
    for seed, prompt in enumerate(PROMPTS):
        found = told(replayed, target, prompt, seed)
        assert_same_bits(found, told(anew, target, prompt, seed))
        assert_close(found, told(plain, target, prompt, seed))
        assert any(len(draft.tokens) == k for draft in found)
    assert replayed.captured() == (tapes.captures, None)
    assert tapes.replays >= len(PROMPTS) * (2 * ROUNDS - 2)  # once no guess is asked for; prompts may be long
    assert plain.captured() == (None, "not on a GPU")


def reply_of(drafter: Any, target: TargetModel) -> Reply:
    drafter.sampler.restart(Randomness(0, target.device))
    clock, ids = Watch(lambda: 0), torch.tensor(PROMPT)
    return decode(target, drafter, ids, drafter.sampler, clock, max_new_tokens=24)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", OWN)
def test_replies_are_the_eager_ones(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the random numbers are used up alike: a reply goes on to draw from where a draft left off."""
    target, tapes = tiny_target(), TapeRecorder()
    make = making(name, 3, target, temperature)
    replies = [reply_of(on(recorder, make, monkeypatch), target) for recorder in (tapes, None)]
    assert len({one.token_ids for one in replies}) == len({one.rounds.draft_ids for one in replies}) == 1
    assert replies[0].rounds.accepted == replies[1].rounds.accepted
    assert tapes.replays > len(replies[0].rounds)


@pytest.mark.parametrize("name", [*OWN, "draft_model"])
def test_captures_lie_outside_the_clock_and_happen_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tapes = tiny_target(), TapeRecorder()
    drafter = on(tapes, making(name, 2, target), monkeypatch)
    if name == "draft_model":
        drafter.model.use_graphs(tapes)
    clock = Watch(lambda: tapes.captures)
    for _ in range(2):
        decode(target, drafter, torch.tensor(PROMPT), drafter.sampler, clock, max_new_tokens=9)
    assert clock.seen[0] > 0 and len(set(clock.seen)) == 1
    assert drafter.captured() == (tapes.captures, None)


@torch.inference_mode()
def test_what_is_there_or_cannot_be_is_not_captured_again() -> None:
    cpu, given = torch.device("cpu"), torch.tensor([2])
    piece = graphs.Piece("sum", lambda start, width, one: (one + start, None), (given * 0,), rows=1)
    for recorder, captures in ((TapeRecorder(), 2), (TapeRecorder(fails_at=1), None), (None, None)):
        replays = graphs.Replays(cpu, 20, recorder, 16)
        for _ in range(2):
            replays.capture([piece])
        assert replays.count == captures
        assert recorder is None or recorder.captures == (captures or 1)
        found, beyond = replays.find("sum", 17), replays.find("sum", 21)
        assert (found is None) == (captures is None) and beyond is None
        if found is not None:
            total, nothing = found(5, given)
            assert (total.tolist(), nothing) == ([7], None)


def test_there_is_one_graph_for_each_width_where_the_cache_is_read() -> None:
    """Three widths; a draft and commits of 1 to 3 tokens. A block drafter's commit only writes."""
    for name, count in {"eagle3": 3 * 4, "mtp": 3 * 4, "dflash": 3 + 3, "dspark": 3 + 3}.items():
        target = tiny_target(max_context=50)
        with pytest.MonkeyPatch.context() as patch:
            drafter = on(TapeRecorder(), making(name, 2, target), patch)
        with torch.inference_mode():
            drafter.prepare()
        assert drafter.captured() == (count, None), name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", OWN)
@torch.inference_mode()
def test_no_replayed_proposal_or_commit_waits_for_the_device(
    name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target()
    drafter = on(
        Eager(), making(name, 3, target, temperature), monkeypatch
    )  # runs, and so shows, all that is captured
    drafter.prepare()
    with rehearsal.Walk(drafter, target, PROMPT) as walk:
        with Reads() as watch:
            walk.propose()
            drafter.commit(walk.tokens[:2], walk.features[:2])
        assert watch.reads == []


@pytest.mark.parametrize("fails_at", [1, 8])
@pytest.mark.parametrize("name", OWN)
def test_where_a_capture_fails_nothing_captured_is_used(
    name: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and, when those of the draft are there already, the eighth."""
    target, tapes = tiny_target(), TapeRecorder(fails_at)
    make = making(name, 3, target)
    broken, plain = on(tapes, make, monkeypatch), on(None, make, monkeypatch)
    for seed, prompt in enumerate(PROMPTS):
        assert_same_bits(told(broken, target, prompt, seed), told(plain, target, prompt, seed))
    assert (tapes.captures, tapes.replays) == (fails_at, 0)
    assert broken.captured() == (None, REASON)


REASON = "capture failed: AcceleratorError: CUDA error: operation not permitted"


@pytest.mark.parametrize("name", OWN)
def test_a_trial_run_that_fails_is_a_failed_capture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run to learn the shapes may fail before anything is recorded."""

    def refuse(start: Tensor, rows: int, width: int) -> Places:
        raise torch.OutOfMemoryError("no room")

    target, tapes = tiny_target(), TapeRecorder()
    make = making(name, 3, target)
    broken, plain = on(tapes, make, monkeypatch), on(None, make, monkeypatch)
    monkeypatch.setattr(Places, "after", refuse)
    assert reply_of(broken, target).rounds.draft_ids == reply_of(plain, target).rounds.draft_ids
    assert broken.captured() == (None, "capture failed: OutOfMemoryError: no room")
    assert tapes.captures == 0


@pytest.mark.parametrize("name", OWN)
@torch.inference_mode()
def test_without_a_gpu_nothing_more_is_computed(name: str) -> None:
    target = tiny_target()
    drafter = making(name, 3, target)()
    with Tape() as tape:
        drafter.prepare()
    assert tape.steps == []


@torch.inference_mode()
def test_a_cut_by_confidence_is_made_in_what_was_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    target, tapes = tiny_target(), TapeRecorder()

    def make() -> Any:
        return dspark.example(target, rehearsal.sampler(target), confidence_threshold=0.5)

    replayed, plain = on(tapes, make, monkeypatch), on(None, make, monkeypatch)
    found = [told(one, target, PROMPT, 0) for one in (replayed, plain)]
    lengths = [[len(draft.tokens) for n, draft in enumerate(drafts) if n % 4] for drafts in found]
    assert lengths[0] == lengths[1] and len(set(lengths[0])) > 1  # where the limit does not cut
    assert tapes.replays > 0


@torch.inference_mode()
def test_what_was_cut_away_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads cached positions behind the text's end, and a mask hides them."""
    target = tiny_target()
    for name in OWN:
        drafter = on(TapeRecorder(), making(name, 3, target, 1.0), monkeypatch)
        drafter.prepare()
        laws = []
        for rest in (0.0, 50.0):
            with rehearsal.Walk(drafter, target, PROMPT) as walk:
                drafter.sampler.restart(Randomness(0, target.device))
                for held in caches(drafter):
                    held.keys[:, :, held.length :], held.values[:, :, held.length :] = rest, rest
                laws.append(walk.propose().probs)
        assert same(*laws), name


@torch.inference_mode()
def test_what_was_returned_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target()
    for name in OWN:
        drafter = on(TapeRecorder(), making(name, 3, target), monkeypatch)
        drafter.prepare()
        with rehearsal.Walk(drafter, target, PROMPT) as walk:
            first = walk.propose()
            before = first.tokens.clone()
            walk.commit([7, 2])
            assert rehearsal.ids(walk.propose()) != before.tolist(), name
            assert torch.equal(first.tokens, before), name


MODULE = """
from draftboard_drafters.eagle3 import CARD, example

def build(target, sampler, *, num_speculative_tokens=3):
    return example(target, sampler, num_speculative_tokens=num_speculative_tokens)
"""


@pytest.mark.parametrize(("recorder", "missing"), [(None, "not on a GPU"), (3, REASON), (0, None)])
def test_an_arms_record_tells_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: int | None, missing: str | None
) -> None:
    """Captured in the warm-up, after the first line of the journal; `recorder` is the capture that fails."""
    tapes = None if recorder is None else TapeRecorder(recorder)
    monkeypatch.setattr(graphs, "recorder_for", lambda device: tapes)
    save_task(tmp_path, prompts=1)
    (tmp_path / "captured_drafter.py").write_text(MODULE)
    plan = small_plan(tmp_path, max_new_tokens=8, warmup=1)
    arm = ArmSpec(str(tmp_path / "captured_drafter.py"), 2)
    plan = dataclasses.replace(plan, arms=(*plan.arms, arm))
    outcome = runner.run_plan(plan, Store(tmp_path / "out"), lambda event: None, start_method="fork")
    _, (none, _, own) = load(outcome.folder)
    assert (none.graphs, none.graphs_missing) == (None, "its drafter captures nothing")
    assert own.losslessness is not None and own.losslessness.compared == own.losslessness.identical == 2
    assert own.graphs_missing == missing
    assert (own.graphs or 0) > 0 if missing is None else own.graphs is None


def test_an_arm_that_failed_tells_nothing_of_graphs(tmp_path: Path) -> None:
    (tmp_path / "unbuildable_drafter.py").write_text(MODULE.replace("return example(", "return missing("))
    target = tiny_target()
    spec = ArmSpec(str(tmp_path / "unbuildable_drafter.py"), 2)
    arm = arms.build_arm(spec, "draftboard_drafters", target, rehearsal.sampler(target), [])
    assert arm.error is not None and arm.graphs == (None, "the arm failed")
    assert Arm.__dataclass_fields__["graphs_missing"].default == "not stated"  # of files written before
