"""`--max-context`: caches hold what the prompts need, and no more than was allowed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from typer.testing import CliRunner

from draftboard.cli import app
from draftboard.errors import UserError
from draftboard.measure import estimate, runner
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.events import Event, Note
from draftboard.measure.loading import load_target, position_limit
from draftboard.measure.plan import Plan
from draftboard.measure.prompts import Template
from draftboard.measure.room import make_room
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard.record.store import Store, load
from draftboard.record.suites import load_suite
from draftboard.record.tasks import load_task
from draftboard_drafters import draft_model
from tiny import tiny_model, tiny_target
from tiny_folder import byte_tokenizer, save_tiny_folder, small_plan

CPU = torch.device("cpu")


def save_task(root: Path) -> None:
    """Prompts of 5, 50 and 120 letters, which are as many tokens; a chat adds 21."""
    folder = root / "tasks" / "letters"
    folder.mkdir(parents=True)
    rows = [{"id": f"p{n}", "category": "c", "turns": ["a" * n]} for n in (5, 50, 120)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.toml").write_text(
        'title = "Letters"\nversion = 1\nlicence = "CC0-1.0"\norigin = "made for a test"\n'
        'analysis = "nothing"\ntemplate = "target"\nturns = 1\n'
    )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    save_task(tmp_path)
    return small_plan(tmp_path, max_new_tokens=8, warmup=1, task="letters", limit=None)


def room_of(plan: Plan, limit: int | None = 1024):
    task = load_task(plan.task, Path(plan.root))
    return make_room(plan, Template(byte_tokenizer(), task), task.sample(None, 0), limit)


def test_by_default_there_is_room_for_the_longest_prompt_and_no_more(plan: Plan) -> None:
    found = room_of(plan, limit=131_072)
    assert (len(found.prompts), found.left_out) == (3, {})
    assert 120 + 8 < found.positions < 120 + 8 + 100


def test_prompts_that_do_not_fit_are_left_out_and_named(plan: Plan) -> None:
    whole = room_of(plan)
    found = room_of(replace(plan, max_context=whole.positions - 1))
    assert {prompt.id for prompt in found.prompts} == {"p5", "p50"}
    assert found.left_out == {"p120": whole.positions}
    assert found.positions == whole.positions - 70, "the cache holds what the rest needs"
    assert room_of(replace(plan, max_context=whole.positions)) == whole


def test_what_cannot_be_is_refused_in_one_line(plan: Plan) -> None:
    with pytest.raises(UserError, match="--max-context 2000 is more than the target's own limit of 1024"):
        room_of(replace(plan, max_context=2000))
    assert len(room_of(replace(plan, max_context=2000), limit=None).prompts) == 3
    least = min(room_of(plan).positions - 115, 1024)
    with pytest.raises(UserError, match=f"no prompt .* the shortest may need {least} positions; raise it"):
        room_of(replace(plan, max_context=least - 1))


def test_a_run_records_its_room_and_whom_it_left_out(plan: Plan, tmp_path: Path) -> None:
    events: list[Event] = []
    chosen = replace(plan, max_context=150)
    out = runner.run_plan(chosen, Store(tmp_path / "out"), events.append, start_method="fork")
    run, arms = load(out.folder)
    assert sorted(run.prompt_ids) == ["p5", "p50"] and run.task.prompts == 2
    assert list(run.left_out) == ["p120"] and run.left_out["p120"] > 150 >= run.target.max_context
    assert [len(arm.traces) for arm in arms] == [2, 2] and not any(arm.error for arm in arms)
    assert any(isinstance(e, Note) and "p120" in e.text and "--max-context 150" in e.text for e in events)


def test_a_suite_may_set_it_and_refuses_nonsense() -> None:
    suite = load_suite("smoke")
    assert suite.max_context is None and suite.override(max_context=512).max_context == 512
    with pytest.raises(UserError, match="max_context must be at least 1, found 0"):
        suite.override(max_context=0)


def test_a_target_with_a_long_limit_takes_memory_for_what_is_asked(tmp_path: Path) -> None:
    tiny_model("llama", max_position_embeddings=131_072).save_pretrained(tmp_path)
    assert position_limit(str(tmp_path)) == 131_072
    target = load_target(str(tmp_path), dtype=torch.float32, device=CPU, max_context=300)
    assert target.max_context == target.forward.cache.capacity == 300


@pytest.mark.parametrize(("limit", "expected"), [(131_072, 200), (96, 96)])
def test_a_draft_model_holds_no_more_than_its_target(tmp_path: Path, limit: int, expected: int) -> None:
    save_tiny_folder(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": limit}))
    target = tiny_target(vocab_size=260, max_context=200)
    target.tokenizer = byte_tokenizer()
    sampler = Sampler(Sampling(), Randomness(0, CPU))
    drafter = draft_model.build(target, sampler, num_speculative_tokens=2, model=str(tmp_path))
    assert drafter.model.max_context == expected


def test_a_dry_run_says_what_the_run_would_say(plan: Plan, tmp_path: Path) -> None:
    store, whole = Store(tmp_path / "out"), room_of(plan)
    tight = replace(plan, max_context=whole.positions - 1)
    found = estimate.outlook([tight], store)
    events: list[Event] = []
    runner.run_plan(tight, store, events.append, start_method="fork")
    said = [event.text for event in events if isinstance(event, Note) and "left out" in event.text]
    assert found.notes == tuple(f"letters: {text}" for text in said) and len(said) == 1
    assert [cell.prompts for cell in found.cells] == [2, 2]


def test_a_dry_run_of_what_cannot_run_fails_as_the_run_does(plan: Plan, tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    hopeless = replace(plan, max_context=20)
    with pytest.raises(UserError) as foreseen:
        estimate.outlook([hopeless], store)
    with pytest.raises(UserError, match=re.escape(str(foreseen.value))):
        runner.run_plan(hopeless, store, lambda event: None, start_method="fork")
    found = estimate.outlook([hopeless, plan], store)
    assert found.failures == (f"letters: {foreseen.value}",)
    assert [cell.prompts for cell in found.cells] == [3, 3]


def test_the_command_ends_as_the_run_does(plan: Plan, tmp_path: Path) -> None:
    asked = ["run", "--dry-run", "--root", plan.root, "--target", plan.target, "--device", "cpu"]
    found = CliRunner().invoke(app, [*asked, "--tasks", "letters", "--max-context", "20"])
    assert isinstance(found.exception, UserError) and "no prompt of task" in str(found.exception)
    shutil.copytree(tmp_path / "tasks" / "letters", tmp_path / "tasks" / "others")
    found = CliRunner().invoke(app, [*asked, "--tasks", "letters,others", "--max-context", "20"])
    assert found.exit_code == 6
    assert [line[:35] for line in found.output.splitlines() if line.startswith("draftboard")] == [
        "draftboard: letters: no prompt of t",
        "draftboard: others: no prompt of ta",
    ]
    assert CliRunner().invoke(app, [*asked, "--tasks", "letters"]).exit_code == 0


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one commit of owner/toy in it, and the folder of that commit."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    kept = tmp_path / "hub" / "models--owner--toy"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("c0ffee")
    (kept / "snapshots" / "c0ffee").mkdir(parents=True)
    return kept / "snapshots" / "c0ffee"


def test_a_dry_run_fetches_nothing(plan: Plan, hub: Path, tmp_path: Path) -> None:
    """Where the target's files are not here, it says so; those that a run has fetched it reads."""
    away = replace(plan, target="owner/toy", max_context=150)
    for expected in (r"shows once owner/toy is fetched", r"left out, since .* p120"):
        found = estimate.outlook([away], Store(tmp_path / "out"))
        assert re.search(expected, found.notes[0])
        save_tiny_folder(hub)
    assert [cell.prompts for cell in found.cells] == [2, 2]


def test_the_embedded_target_is_not_made_for_a_dry_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTBOARD_CACHE", str(tmp_path / "empty"))
    found = estimate.outlook([replace(plan, target=EMBEDDED_ID, max_context=150)], Store(tmp_path / "out"))
    assert f"shows once {EMBEDDED_ID} is fetched" in found.notes[0]
    assert not (tmp_path / "empty").exists()
