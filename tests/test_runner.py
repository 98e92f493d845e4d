"""Runs end to end on a tiny target: interleaving, failures, deaths, interruption and resumption."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.measure import runner
from draftboard.measure.events import Begun, Event, Failed, Note, Ready, Replied
from draftboard.measure.plan import Plan
from draftboard.record.records import Arm, RunRecord, Sampling
from draftboard.record.store import Store, load
from draftboard.record.suites import ArmSpec
from tiny_folder import save_task, save_tiny_folder, small_plan

ODD = Path(__file__).parent / "odd_drafters"
PLAIN, LOOKUP = ArmSpec("none"), ArmSpec("ngram", 3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_folder(tmp_path_factory.mktemp("target")))


@pytest.fixture
def plan(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("PYTHONPATH", str(ODD))
    monkeypatch.syspath_prepend(str(ODD))
    save_task(tmp_path)
    return small_plan(
        tmp_path, max_new_tokens=12, warmup=1, target=target, limit=None, command="draftboard run"
    )


class Events(list[Event]):
    """Remembers events, and may act on one."""

    def __call__(self, event: Event) -> None:
        self.append(event)


def run(plan: Plan, tmp_path: Path, watch: Any = None, **options: Any) -> tuple[RunRecord, list[Arm]]:
    watch = Events() if watch is None else watch
    outcome = runner.run_plan(plan, Store(tmp_path / "results"), watch, **{"start_method": "fork", **options})
    return load(outcome.folder)


def odd(name: str, **options: Any) -> ArmSpec:
    return ArmSpec(str(ODD / f"{name}.py"), options=options)


def test_every_arm_answers_every_turn_and_is_lossless(plan: Plan, tmp_path: Path) -> None:
    events = Events()
    record, (plain, lookup) = run(plan, tmp_path, events)
    assert record.baseline == plain.id == lookup.baseline
    assert sorted(record.prompt_ids) == ["p0", "p1", "p2"]
    for arm in (plain, lookup):
        places = Counter((trace.prompt_id, trace.turn) for trace in arm.traces)
        assert places == {(f"p{i}", turn): 1 for i in range(3) for turn in range(2)}
        for trace in arm.traces:
            assert trace.rounds is not None and sum(trace.rounds.emitted) == len(trace.token_ids) - 1
            assert len(trace.token_ids) == 12 == len(trace.pieces)
    assert lookup.losslessness is not None
    assert (lookup.losslessness.compared, lookup.losslessness.identical) == (6, 6)
    assert sum(trace.rounds.proposed[i] for trace in lookup.traces for i in range(len(trace.rounds))) > 0
    ready = next(event for event in events if isinstance(event, Ready))
    assert ready.replies == sum(isinstance(event, Replied) for event in events) == 12
    assert not list((tmp_path / "results" / ".partial").iterdir())


def test_the_history_is_the_baselines_reply(plan: Plan, tmp_path: Path) -> None:
    _, (plain, lookup) = run(plan, tmp_path)
    second = {
        (arm.id, t.prompt_id): t.prompt_ids for arm in (plain, lookup) for t in arm.traces if t.turn == 1
    }
    for i in range(3):
        assert second[plain.id, f"p{i}"] == second[lookup.id, f"p{i}"]
        first = next(t for t in plain.traces if (t.prompt_id, t.turn) == (f"p{i}", 0))
        assert len(second[plain.id, f"p{i}"]) > len(first.prompt_ids)


def test_arms_are_interleaved_in_changing_order(plan: Plan, tmp_path: Path) -> None:
    events = Events()
    run(dataclasses.replace(plan, repeats=4), tmp_path, events)
    replied = [event.arm for event in events if isinstance(event, Replied)]
    pairs = list(zip(replied[::2], replied[1::2], strict=True))
    assert set(pairs) == {(0, 1), (1, 0)}


def test_same_seed_same_tokens_and_sampling_repeats(plan: Plan, tmp_path: Path) -> None:
    warm = dataclasses.replace(plan, sampling=Sampling(temperature=1.0, seed=3), limit=2)
    first, second = (run(warm, tmp_path / str(i))[1] for i in range(2))
    for one, other in zip(first, second, strict=True):
        assert [t.token_ids for t in one.traces] == [t.token_ids for t in other.traces]
    other = run(dataclasses.replace(warm, sampling=Sampling(temperature=1.0, seed=4)), tmp_path / "c")[1]
    assert [t.token_ids for t in first[0].traces] != [t.token_ids for t in other[0].traces]
    assert first[1].losslessness is not None and first[1].losslessness.not_checked


def test_an_arm_that_raises_is_a_row_and_the_others_go_on(plan: Plan, tmp_path: Path) -> None:
    arms = (PLAIN, odd("raising", rounds=30), LOOKUP)
    _, (plain, raising, lookup) = run(dataclasses.replace(plan, arms=arms), tmp_path)
    assert raising.error is not None and raising.error.startswith("ValueError: no more guesses (raising.py:")
    assert 0 < len(raising.traces) < 6
    assert len(plain.traces) == len(lookup.traces) == 6 and lookup.error is None


def test_a_broken_promise_is_named(plan: Plan, tmp_path: Path) -> None:
    _, (_, lying) = run(dataclasses.replace(plan, arms=(PLAIN, odd("lying"))), tmp_path)
    assert lying.error is not None and "expected at most" in lying.error and lying.traces == ()
    assert lying.losslessness is not None and lying.losslessness.not_checked


def test_a_worker_that_dies_is_restarted_without_the_arm(plan: Plan, tmp_path: Path) -> None:
    arms = (PLAIN, odd("dying", rounds=30), LOOKUP)
    events = Events()
    record, (plain, dying, lookup) = run(dataclasses.replace(plan, arms=arms), tmp_path, events)
    assert dying.error == "the worker process ended with code 7 in this arm"
    assert dying.id in record.arms and 0 < len(dying.traces) < 6
    assert len(plain.traces) == len(lookup.traces) == 6
    assert [event.arm for event in events if isinstance(event, Failed)] == [1]
    measured = Counter(
        (event.arm, event.trace.prompt_id, event.trace.turn) for event in events if isinstance(event, Replied)
    )
    assert set(measured.values()) == {1}, "a reply was measured again after the restart"


def test_a_baseline_that_fails_stops_the_run_in_one_line(plan: Plan, tmp_path: Path) -> None:
    broken = dataclasses.replace(
        plan, baseline=str(ODD / "raising.py"), arms=(odd("raising", rounds=14), LOOKUP)
    )
    with pytest.raises(UserError, match="baseline failed"):
        run(broken, tmp_path)
    assert list((tmp_path / "results" / ".partial").glob("*.jsonl")), "what was measured must be kept"


class Interrupt(Events):
    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if sum(isinstance(one, Replied) for one in self) == 5:
            raise KeyboardInterrupt


def test_interrupted_and_resumed_equals_uninterrupted(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Interrupt())
    assert Store(tmp_path / "results").runs() == []
    events = Events()
    _, resumed = run(plan, tmp_path, events, resume=True)
    again = sum(isinstance(event, Replied) for event in events)
    assert again in (6, 7), "a reply that was on disk was measured again"
    _, whole = run(plan, tmp_path / "other")
    for one, other in zip(resumed, whole, strict=True):
        assert one.id == other.id
        assert {(t.prompt_id, t.turn): t.token_ids for t in one.traces} == {
            (t.prompt_id, t.turn): t.token_ids for t in other.traces
        }
        assert len(one.traces) == 6


def test_resume_does_not_continue_another_plan(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Interrupt())
    run(dataclasses.replace(plan, max_new_tokens=5), tmp_path, resume=True)
    assert len(runner.interrupted_runs(Store(tmp_path / "results"))) == 1


def test_a_run_that_is_measured_now_is_not_called_interrupted(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = Store(tmp_path / "results"), list[bool]()
    real = runner.assemble

    def assembled(journal: Any) -> Any:
        seen.extend(map(runner.is_written, runner.interrupted_runs(store)))
        return real(journal)

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Interrupt())
    assert [runner.is_written(path) for path in runner.interrupted_runs(store)] == [False]
    monkeypatch.setattr(runner, "assemble", assembled)
    run(plan, tmp_path, resume=True)
    assert seen == [True]


def test_a_torn_last_line_costs_one_reply(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Interrupt())
    (journal,) = runner.interrupted_runs(Store(tmp_path / "results"))
    journal.write_bytes(journal.read_bytes()[:-40])
    _, arms = run(plan, tmp_path, resume=True)
    assert [len(arm.traces) for arm in arms] == [6, 6]


def test_arm_ids_name_what_decides_the_result(plan: Plan, tmp_path: Path) -> None:
    def ids(**changes: Any) -> tuple[str, ...]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return run(dataclasses.replace(plan, limit=1, **changes), folder)[0].arms

    base = ids()
    assert ids(command="another", repeats=2) == base
    assert not set(ids(max_new_tokens=5)) & set(base)
    assert ids(arms=(PLAIN, ArmSpec("ngram", 4)))[1] != base[1]


def test_the_same_arm_twice_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="listed twice"):
        run(dataclasses.replace(plan, arms=(PLAIN, LOOKUP, ArmSpec("ngram", 3, {}))), tmp_path)


@pytest.mark.parametrize("repeats, timed", [(0, False), (1, True)])
def test_verifications_are_timed_where_the_plan_asks_for_it(
    plan: Plan, tmp_path: Path, repeats: int, timed: bool
) -> None:
    record, _ = run(dataclasses.replace(plan, limit=1, verify_repeats=repeats), tmp_path)
    assert bool(record.verify_ms) is timed


def test_records_are_strict_json(plan: Plan, tmp_path: Path) -> None:
    outcome = runner.run_plan(dataclasses.replace(plan, limit=1), Store(tmp_path / "r"), Events())  # spawned
    for file in outcome.folder.glob("*.json"):
        json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(name))


def test_begun_precedes_every_reply(plan: Plan, tmp_path: Path) -> None:
    events = Events()
    run(dataclasses.replace(plan, limit=1), tmp_path, events)
    for before, event in itertools.pairwise(events):
        if isinstance(event, Replied):
            assert before == Begun(event.arm)


def test_a_bfloat16_run_proves_two_prompts_in_float32(plan: Plan, tmp_path: Path) -> None:
    record, (plain, lookup) = run(dataclasses.replace(plan, dtype="bfloat16"), tmp_path)
    assert record.dtype == "bfloat16"
    facts = lookup.losslessness
    assert facts is not None
    assert (facts.float32_compared, facts.float32_identical) == (2, 2)
    assert facts.compared == 6 == facts.identical + len(facts.divergences)
    assert plain.losslessness is not None and plain.losslessness.not_checked


def test_verification_is_timed_for_each_number_of_rows(plan: Plan, tmp_path: Path) -> None:
    record, _ = run(dataclasses.replace(plan, limit=1), tmp_path)
    assert list(record.verify_ms) == ["1", "2", "4", "8", "16", "32"]
    assert all(ms > 0 for ms in record.verify_ms.values())


def test_a_run_killed_while_closing_is_stored_on_resume(plan: Plan, tmp_path: Path) -> None:
    class AtTheEnd(Events):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Note):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, AtTheEnd())
    events = Events()
    _, arms = run(plan, tmp_path, events, resume=True)
    assert not any(isinstance(event, Replied) for event in events)
    assert [len(arm.traces) for arm in arms] == [6, 6]


def test_two_processes_do_not_write_one_journal(plan: Plan, tmp_path: Path) -> None:
    class Rival(Events):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Replied) and not self.refused:
                self.refused = True
                with pytest.raises(UserError, match="another process"):
                    run(plan, tmp_path, resume=True)

        refused = False

    rival = Rival()
    run(plan, tmp_path, rival)
    assert rival.refused


def test_a_failed_arm_does_not_cost_a_bfloat16_run_its_end(plan: Plan, tmp_path: Path) -> None:
    arms = (PLAIN, odd("raising", rounds=30), LOOKUP, odd("dying", rounds=400))
    _, (_, raising, lookup, dying) = run(dataclasses.replace(plan, dtype="bfloat16", arms=arms), tmp_path)
    assert raising.error is not None and lookup.error is None and dying.error is None
    assert lookup.losslessness is not None and lookup.losslessness.float32_compared == 2
    assert dying.losslessness is not None and dying.losslessness.float32_compared == 2


def test_an_arm_that_could_not_be_built_stays_out_on_resume(plan: Plan, tmp_path: Path) -> None:
    missing = ArmSpec("draft_model", 2, {"model": str(tmp_path / "nowhere")})
    broken = dataclasses.replace(plan, arms=(PLAIN, missing, LOOKUP))
    with pytest.raises(KeyboardInterrupt):
        run(broken, tmp_path, Interrupt())
    save_tiny_folder(tmp_path / "nowhere")
    _, (plain, never, lookup) = run(broken, tmp_path, resume=True)
    assert never.error is not None and never.traces == ()
    assert len(plain.traces) == len(lookup.traces) == 6


def test_a_run_whose_prompts_changed_is_not_continued(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, Interrupt())
    file = tmp_path / "tasks" / "small" / "prompts.jsonl"
    file.write_text(file.read_text().replace("more", "less"))
    with pytest.raises(UserError, match="start anew without --resume"):
        run(plan, tmp_path, resume=True)


def test_progress_counts_living_arms_only(plan: Plan, tmp_path: Path) -> None:
    arms = (PLAIN, odd("dying", rounds=30), LOOKUP)
    events = Events()
    run(dataclasses.replace(plan, arms=arms), tmp_path, events)
    last = [event for event in events if isinstance(event, Ready)][-1]
    after = events[events.index(last) :]
    assert last.replies == sum(isinstance(event, Replied) for event in after)


def test_a_run_stored_but_not_cleared_is_cleared_on_resume(plan: Plan, tmp_path: Path) -> None:
    class AtTheEnd(Events):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Note):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path, AtTheEnd())
    (path,) = runner.interrupted_runs(Store(tmp_path / "results"))
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    first, _ = run(plan, tmp_path, resume=True)
    copy.rename(path)
    again, _ = run(plan, tmp_path, resume=True)
    assert again.id == first.id and not runner.interrupted_runs(Store(tmp_path / "results"))


def test_records_name_no_folder_of_the_user(plan: Plan, tmp_path: Path, target: str) -> None:
    draft = ArmSpec("draft_model", 2, {"model": target})
    record, _ = run(dataclasses.replace(plan, arms=(PLAIN, draft, odd("lying")), limit=1), tmp_path)
    assert record.target.id == Path(target).name and (record.target.revision or "").startswith("sha256:")
    for file in (tmp_path / "results").glob("*/*/*.json"):
        assert str(tmp_path.parent) not in file.read_text() and str(ODD) not in file.read_text()
