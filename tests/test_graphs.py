"""Forwards replayed from graphs: the eager ones' results, and eager where there are none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftboard.drafter import FINAL_NORM
from draftboard.errors import UserError
from draftboard.measure import loading, rehearsal, runner
from draftboard.measure.curve import verify_curve
from draftboard.measure.decode import decode
from draftboard.measure.graphs import Graphs
from draftboard.measure.loading import load_target
from draftboard.measure.target import TargetModel
from draftboard.record.store import Store, load
from scripted import Scripted, always
from shipped import MODULES, maker
from tape import TapeRecorder, Watch
from test_target import FUSED, rough
from tiny import tiny_target
from tiny_folder import save_task, small_plan
from watched import PROMPT, TEXT, Watched, check, guesses_at_random, run

pytestmark = pytest.mark.usefixtures("torch_only")

TAPS = (0, FINAL_NORM, 2)
ROWS = range(1, 6)
SAID = TEXT[len(PROMPT) :]
CAPACITY = 48


def captured(model: Any, recorder: TapeRecorder | None = None, capacity: int = CAPACITY) -> TargetModel:
    """A target whose graphs see 16, 32, .. positions."""
    target = TargetModel(model, id="tiny", max_context=capacity, stop_ids=frozenset())
    target.use_graphs(recorder or TapeRecorder(), least_width=16)
    return target


def graphs_of(target: TargetModel) -> Graphs:
    assert target.graphs is not None
    return target.graphs


def recorder_of(target: TargetModel) -> TapeRecorder:
    recorder = graphs_of(target).recorder
    assert isinstance(recorder, TapeRecorder)
    return recorder


def steps(seed: int) -> Iterator[tuple[list[int], int]]:
    """Ids to append and how many of them stay, through the whole cache."""
    dice, length = random.Random(seed), 3
    while length < CAPACITY:
        rows = min(dice.choice(ROWS), CAPACITY - length)
        kept = dice.randrange(1, rows + 1)
        yield [dice.randrange(96) for _ in range(rows)], kept
        length += kept


@pytest.mark.parametrize("family", ["llama", "llama-G3", "qwen2", "qwen3"])
@torch.inference_mode()
def test_replayed_forwards_say_what_eager_ones_say(family: str) -> None:
    model = rough(FUSED[family][0], **FUSED[family][1])
    replayed, eager = captured(model), captured(model, TapeRecorder(fails_at=1))
    for seed, taps in enumerate((TAPS, ()) if family == "llama" else (TAPS,)):
        for target in (replayed, eager):
            target.begin(taps)
            target.prepare(ROWS)
            target.prefill(torch.tensor([5, 7, 9]))
        for ids, kept in steps(seed):
            found, expected = (target.extend(torch.tensor(ids)) for target in (replayed, eager))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert torch.equal(found[0].argmax(-1), expected[0].argmax(-1))
            for target in (replayed, eager):
                target.truncate(target.length - len(ids) + kept)
            assert replayed.length == eager.length
    assert recorder_of(replayed).replays > 15 and recorder_of(eager).replays == 0


@torch.inference_mode()
def test_a_replay_is_the_captured_run_bit_for_bit() -> None:
    target = captured(rough("qwen3"))
    target.begin(TAPS)
    target.prepare(ROWS)
    target.prefill(torch.arange(9))
    for start in (9, 12, 15):
        ids, places = torch.tensor([4, 8, 15]), torch.arange(start, start + 3)
        width = 16 if start + 3 <= 16 else 32
        expected = target.forward.run_at(ids, places, width, TAPS)  # type: ignore[attr-defined]
        found = target.extend(ids)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert recorder_of(target).replays == 3


@pytest.mark.parametrize("name", MODULES)
def test_every_drafter_decodes_the_same_text_over_graphs(name: str) -> None:
    target, eager = tiny_target(max_context=128), tiny_target(max_context=128)
    target.use_graphs(TapeRecorder())
    reply = rehearsal.reply(maker(name, 2)(target, rehearsal.sampler(target)), target, PROMPT, 20)
    without = rehearsal.reply(maker(name, 2)(eager, rehearsal.sampler(eager)), eager, PROMPT, 20)
    assert list(reply.token_ids) == SAID[:20]
    assert reply.rounds.draft_ids == without.rounds.draft_ids
    assert recorder_of(target).replays >= len(reply.rounds)


@torch.inference_mode()
def test_a_draft_model_guesses_from_graphs() -> None:
    """Its guesses come from graphs, and so does the gap of two after a round whose guesses were all kept."""
    target = tiny_target(max_context=128)
    eager = rehearsal.told(maker("draft_model", 3)(target, rehearsal.sampler(target)), target, PROMPT)
    drafter: Any = maker("draft_model", 3)(target, rehearsal.sampler(target))
    assert drafter.captured() == (None, "not on a GPU")
    drafter.model.use_graphs(TapeRecorder())
    drafter.prepare()
    assert drafter.captured() == (2, None)
    assert rehearsal.told(drafter, target, PROMPT) == eager
    assert recorder_of(drafter.model).replays == 4 * 3


@pytest.mark.parametrize("seed", range(2))
def test_the_loop_keeps_its_promises_over_graphs(seed: int) -> None:
    target = tiny_target(max_context=128)
    target.use_graphs(TapeRecorder())
    reply = run(target, Watched(target, guesses_at_random(seed)), 30)
    check(reply, 30)
    assert 0 < recorder_of(target).replays < len(reply.rounds)  # more than four guesses are run eagerly


@torch.inference_mode()
def test_what_was_returned_stays_as_it_is() -> None:
    target = captured(rough("llama"))
    target.begin(TAPS)
    target.prepare(ROWS)
    first = target.prefill(torch.tensor([1, 2])), target.extend(torch.tensor([3, 4]))
    before = [tensor.clone() for pair in first for tensor in pair]
    target.extend(torch.tensor([5, 6]))
    target.extend(torch.tensor([7, 8]))
    assert recorder_of(target).replays == 4
    assert all(torch.equal(a, b) for a, b in zip(before, (t for pair in first for t in pair), strict=True))


@torch.inference_mode()
def test_what_was_cut_away_is_not_seen() -> None:
    target = captured(rough("llama"))
    cache = target.forward.cache
    said = []
    for rest in (0.0, 50.0):
        target.begin(TAPS)
        target.prepare(ROWS)
        target.prefill(torch.arange(10))
        cache.keys[:, :, 10:], cache.values[:, :, 10:] = rest, rest
        said.append(target.extend(torch.tensor([3, 1])))
    assert all(torch.equal(one, other) for one, other in zip(*said, strict=True))
    assert recorder_of(target).replays == 2


@torch.inference_mode()
def test_only_the_last_row_where_only_that_is_asked_for() -> None:
    target = captured(rough("llama"))
    target.begin((0,))
    target.prepare(ROWS)
    logits, features = target.prefill(torch.tensor([1, 2, 3]))
    assert (logits.shape, features.shape) == ((1, 96), (3, 1, 32))
    assert recorder_of(target).replays == 1


@torch.inference_mode()
def test_a_full_cache_is_refused_in_the_same_words() -> None:
    target = captured(rough("llama"))
    target.begin(())
    target.prepare(ROWS)
    target.prefill(torch.arange(CAPACITY - 2))
    target.extend(torch.tensor([1, 2]))
    with pytest.raises(UserError, match="context of 51 tokens does not fit the cache of 48"):
        target.extend(torch.tensor([1, 2, 3]))
    assert target.length == CAPACITY


def test_there_is_one_graph_for_each_number_of_rows_width_and_set_of_taps() -> None:
    target = captured(rough("llama"), capacity=40)
    assert graphs_of(target).widths == [16, 32, 40]
    target.begin(())
    for _ in range(2):
        target.prepare([1, 17])
        assert graphs_of(target).count == 3 + 2  # seventeen rows never stand within sixteen positions
    target.begin((2,))
    target.prepare([1])
    assert graphs_of(target).count == recorder_of(target).captures == 5 + 3


@pytest.mark.parametrize("fails_at", [1, 3])
def test_where_a_capture_fails_all_goes_on_eagerly_and_says_why(fails_at: int) -> None:
    target = tiny_target(max_context=128)
    target.use_graphs(TapeRecorder(fails_at))
    for _ in range(2):
        reply = run(target, Scripted(always(3)), 20)
        assert list(reply.token_ids) == SAID[:20]
    said = target.reference()
    assert said.graphs is None
    assert said.graphs_missing == "capture failed: AcceleratorError: CUDA error: operation not permitted"
    assert (recorder_of(target).captures, recorder_of(target).replays) == (fails_at, 0)


def test_a_fault_of_ours_is_not_taken_for_the_devices() -> None:
    class Broken(TapeRecorder):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            raise TypeError("a slip")

    target = captured(rough("llama"), Broken())
    target.begin(())
    with pytest.raises(TypeError, match="a slip"):
        target.prepare([1])


def test_captures_lie_outside_the_clock() -> None:
    target = tiny_target(max_context=128)
    target.use_graphs(TapeRecorder())
    recorder, sampler = recorder_of(target), rehearsal.sampler(target)
    clock = Watch(lambda: recorder.captures)
    ids = torch.tensor(PROMPT)
    for k in (2, 4):
        decode(target, Scripted(always(3), k=k), ids, sampler, clock, max_new_tokens=9)
    assert clock.seen == [3] * 3 + [5] * 3


def test_the_curve_of_verification_is_that_of_the_graphs() -> None:
    target = tiny_target(max_context=128)
    target.use_graphs(TapeRecorder())
    assert set(verify_curve(target, 20, (1, 3), repeats=2)) == {1, 3}
    assert recorder_of(target).replays == 2 * 3


def test_a_record_says_how_forwards_were_launched() -> None:
    target = tiny_target()
    said = target.reference()
    assert (said.forward, said.graphs, said.graphs_missing) == ("fused", None, "not on a GPU")
    target.use_graphs(TapeRecorder())
    assert target.reference().graphs_missing == "nothing has been captured yet"
    target.begin(())
    target.prepare([1, 2])
    said = target.reference()
    assert (said.graphs, said.graphs_missing) == (2, None)
    target = tiny_target(fused=False)
    target.use_graphs(TapeRecorder())
    target.device = torch.device("cuda")
    assert target.reference().graphs_missing == "only the fused forward is captured"


@pytest.mark.parametrize(("fails_at", "missing"), [(None, None), (3, "capture failed: AcceleratorError")])
def test_a_run_is_lossless_over_graphs_and_its_record_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int | None, missing: str | None
) -> None:
    """A capture that fails in the warm-up leaves every counted reply to the eager forward."""

    def load_captured(*names: Any, **options: Any) -> TargetModel:
        target = load_target(*names, **options)
        target.use_graphs(TapeRecorder(fails_at))
        return target

    monkeypatch.setattr(loading, "load_target", load_captured)
    save_task(tmp_path, prompts=1)
    plan = small_plan(tmp_path, max_new_tokens=8, warmup=1)
    outcome = runner.run_plan(plan, Store(tmp_path / "out"), lambda event: None, start_method="fork")
    record, (_, lookup) = load(outcome.folder)
    assert lookup.losslessness is not None
    assert (lookup.losslessness.compared, lookup.losslessness.identical) == (2, 2)
    assert (record.target.graphs is None) == (missing is not None)
    assert (record.target.graphs_missing or "").startswith(missing or "")
