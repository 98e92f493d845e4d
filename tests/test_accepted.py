"""The accepted record: who may become it, what keeps it, and the gate against it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from draftboard import cli_gate
from draftboard.cli import app
from draftboard.errors import UserError
from draftboard.judge.accepting import accept
from draftboard.judge.findings import Limits
from draftboard.judge.gate import Trial
from draftboard.judge.pairing import Run
from draftboard.measure import anew, builds, commands
from draftboard.record.accepted import (
    FILE,
    Floor,
    Ledger,
    accepted_runs,
    doubts,
    moving,
    options_text,
    read_ledger,
    write_ledger,
)
from draftboard.record.environment import Environment
from draftboard.record.history import read
from draftboard.record.records import Generation, Sampling
from draftboard.record.store import Store
from record_factory import ENVIRONMENT
from sides import side, without

NOW = "2026-03-01T00:00:00+00:00"


def good(seed: int = 1, **changes: Any) -> Run:
    """A run that nothing speaks against."""
    return side(seed, prompts=16, repeats=1, **changes)


def changed(**changes: Any) -> Environment:
    return replace(ENVIRONMENT, **changes)


def test_a_floor_of_a_misspelt_task_is_told_and_one_of_a_persons_own_is_not() -> None:
    floors = (Floor("toy", task, "guess-k4", 2.0, "x") for task in ("chat", "chatt", "our-legal-texts"))
    (line,) = doubts(Ledger(floors=tuple(floors)), ["chat", "code"])
    assert line == f"{FILE}: the floor of guess-k4 is of task 'chatt'; did you mean 'chat'?"


def test_the_newest_run_is_accepted_with_its_reason_and_a_floor(tmp_path: Path) -> None:
    ledger = accept(Ledger(), [good(id="old"), good(id="new")], "guess-k4", " first ", NOW)
    (entry,), (floor,) = ledger.accepted, ledger.floors
    assert (entry.run, entry.arm, entry.because, entry.task) == ("new", "guess-k4", "first", "chat")
    assert floor.acceptance_length == pytest.approx(1 + 0.8 * 3)
    write_ledger(tmp_path, ledger)
    assert read_ledger(tmp_path) == ledger


def test_a_floor_stays_when_the_base_moves() -> None:
    ledger = Ledger(floors=(Floor("tiny-target", "chat", "guess-k4", 3.9, "by hand"),))
    moved = accept(ledger, [good(accepted=2)], "guess", "slower but right", NOW)
    assert [one.acceptance_length for one in moved.floors] == [3.9]
    run, (_, own) = good(accepted=2)
    assert moved.floor_of(run, "guess-k4", options_text(own)) == 3.9


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (good(arm={"error": "boom"}), "failed: boom"),
        (good(indicative=True), "indicative"),
        (side(1, prompts=8), "8 prompts"),
        (good(prompt_ids=tuple(f"p{i}" for i in range(20))), "only 16 of the run's 20 prompts"),
        (good(environment=changed(git_dirty=True)), "local changes"),
        (good(environment=changed(git_sha=None, git_dirty=None)), "commit is not known"),
    ],
    ids=["failed", "indicative", "few prompts", "partial", "dirty", "no git"],
)
def test_a_run_with_anything_against_it_is_never_accepted(run: Run, said: str) -> None:
    with pytest.raises(UserError, match=said):
        accept(Ledger(), [good(id="older"), run], "guess-k4", "why not", NOW)


def test_a_reason_and_a_known_arm_are_needed() -> None:
    with pytest.raises(UserError, match="needs a reason"):
        accept(Ledger(), [good()], "guess-k4", "  ", NOW)
    with pytest.raises(UserError, match="did you mean 'guess-k4'"):
        accept(Ledger(), [good()], "guess-k5", "because", NOW)
    with pytest.raises(UserError, match="have: none"):
        accept(Ledger(), [], "guess-k4", "because", NOW)


def test_a_conflict_in_the_ledger_names_the_file(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("<<<<<<< ours\n")
    with pytest.raises(UserError, match="not TOML"):
        read_ledger(tmp_path)


FLOOR = """
[[floors]]
target = "tiny-target"
task = "chat"
arm = "guess-k4"
acceptance_length = 2.0
because = "by hand"
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + FLOOR * 2, "2 floors of tiny-target chat guess-k4; keep one"),
        (
            lambda text: text + text.partition("\n\n")[2].partition("[[floors")[0],
            "2 accepted runs of tiny-target",
        ),
        (lambda text: text.replace(NOW, "yesterday"), "chat guess-k4"),
        (lambda text: text.replace(NOW, "2026-03-01T00:00:00"), "zone"),
        (lambda text: text + FLOOR.replace("2.0", "0.5"), "is 0.5; an acceptance length is 1 or more"),
        (lambda text: text + FLOOR.replace("2.0", "nan"), "found nan"),
        (lambda text: text + FLOOR + FLOOR.replace('"chat"', "7"), r"floors\[1\]\.task: expected str"),
        (lambda text: text.replace("arm_id", "armid"), "armid"),
    ],
    ids=[
        "two floors",
        "two bases",
        "no time",
        "no zone",
        "floor below 1",
        "floor NaN",
        "a number for a name",
        "misspelt key",
    ],
)
def test_what_a_hand_or_a_merge_left_in_the_ledger_is_refused(
    tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    ledger = replace(accept(Ledger(), [good()], "guess-k4", "first", NOW), floors=())
    path = write_ledger(tmp_path, ledger)
    assert read_ledger(tmp_path) == ledger
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=said) as caught:
        read_ledger(tmp_path)
    assert str(path) in str(caught.value)


def test_the_last_runs_of_gates_stay_and_older_ones_go(root: Path) -> None:
    partial = root / "results/.partial"
    for day in range(10, 18):
        (partial / f"gate-202601{day}T000000-1" / "run").mkdir(parents=True)
    (partial / "kept.jsonl").write_text("")
    call(root, "--candidate", str(root / "same"))  # measures nothing
    assert len(list(partial.glob("gate-*"))) == 8
    cli_gate._clear_older(root / "results")
    left = sorted(path.name for path in partial.iterdir() if path.name.startswith("gate-"))
    assert left == [f"gate-202601{day}T000000-1" for day in range(14, 18)]
    assert (partial / "kept.jsonl").exists()


def test_other_machines_have_other_bases(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_run(*good(id="here"))
    ledger = accept(Ledger(), [good(id="here")], "guess", "first", NOW)
    write_ledger(tmp_path, ledger)
    assert [run.id for run, _ in accepted_runs(tmp_path, "f" * 12)] == ["here"]
    assert accepted_runs(tmp_path, "e" * 12) == []


def call(root: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["gate", *words, "--root", str(root)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store(tmp_path / "results")
    store.write_run(*good(id="first"))
    for word, slow_arm in (("same", 1.0), ("slow", 1.3), ("creep", 1.045)):
        made = good(len(word) + int(slow_arm * 100), slow_arm=slow_arm, id=word)
        Store(tmp_path / word).write_run(*made)
    return tmp_path


def test_first_run_then_accept_then_pass(root: Path) -> None:
    stored = ("--against", "accepted", "--candidate", str(root / "same"), "--history")
    assert call(root, *stored).exit_code == 5
    assert call(root, "--accept", "guess-k4", "--because", "first").exit_code == 0
    assert call(root, "--accept", "plain", "--because", "first").exit_code == 0
    shown = call(root, *stored)
    assert (shown.exit_code, "pass (exit code 0" in shown.output) == (0, True)
    assert len(list((root / "results" / "history").iterdir())) == 2


def test_the_gate_says_what_a_misspelt_floor_guards(root: Path) -> None:
    write_ledger(root / "results", Ledger(floors=(Floor("t", "chatt", "guess-k4", 2.0, "x"),)))
    (root / "tasks" / "chat").mkdir(parents=True)
    said = call(root, "--candidate", str(root / "same")).output
    assert "the floor of guess-k4 is of task 'chatt'; did you mean 'chat'?" in said


@pytest.mark.parametrize("word", ["slow", "creep"])
def test_one_stored_measurement_raises_a_doubt_and_no_verdict(root: Path, word: str) -> None:
    """Nothing can be measured again, so a slowdown stays unconfirmed."""
    call(root, "--accept", "guess-k4", "--because", "first")
    call(root, "--accept", "plain", "--because", "first")
    assert call(root, "--candidate", str(root / word)).exit_code == 3


@pytest.mark.parametrize("left", [".partial/x.jsonl", "machine/run/guess-k4-arm00001.json"])
def test_an_interrupted_candidate_is_no_pass(root: Path, left: str) -> None:
    call(root, "--accept", "guess-k4", "--because", "first")
    (root / "stopped" / left).parent.mkdir(parents=True)
    (root / "stopped" / left).write_text("{")
    assert call(root, "--candidate", str(root / "stopped")).exit_code == 5


def test_an_interrupted_gate_is_no_regression(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*sides: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trial, "add", stopped)
    assert call(root, "--candidate", str(root / "same")).exit_code == 130


def test_sides_that_make_no_sense_together(root: Path) -> None:
    shown = call(root, "--against", "HEAD", "--candidate", "x")
    assert isinstance(shown.exception, UserError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "junti"), "did you mean 'junit'"),
        (("--out", "x.md"), "add --format"),
        (("--format", "json", "--out", "nowhere/x.json"), "no folder"),
        (("--because", "it is faster"), "name the arm"),
        (("--run", "first"), "name the arm"),
        (("--suite", "quick"), "leave one out"),
        (("--work", "x"), "leave one out"),
        (("--sessions", "2"), "leave one out"),
        (("--limit", "3"), "is a share"),
        (("--acceptance-limit", "nan"), "is a share"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_is_measured(
    root: Path, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "over", pytest.fail)
    shown = call(root, "--candidate", str(root / "same"), *words)
    assert isinstance(shown.exception, UserError) and said in str(shown.exception)


def test_a_gate_stopped_while_the_base_is_built_is_no_regression(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(builds, "at_commit", stopped)
    assert call(root, "--against", "HEAD").exit_code == 130


def test_a_vanished_arm_fails_and_two_gates_leave_two_entries(root: Path) -> None:
    for arm in ("plain", "guess-k4"):
        call(root, "--accept", arm, "--because", "first")
    Store(root / "less").write_run(*without(good(5, id="less"), "arm00001"))
    for _ in range(2):
        assert call(root, "--candidate", str(root / "less"), "--history").exit_code == 1
    assert [one.outcome for one in read(root / "results")] == ["regression"] * 2


def test_an_accepted_run_that_is_gone_is_named(root: Path) -> None:
    call(root, "--accept", "guess-k4", "--because", "first")
    shutil.rmtree(next((root / "results").glob("*/first")))
    shown = call(root, "--candidate", str(root / "same"))
    assert isinstance(shown.exception, UserError) and "'first' not found" in str(shown.exception)


WARM = {"sampling": Sampling(temperature=1.0), "arm": {"losslessness": None}}


def test_a_run_of_another_setting_takes_no_base_by_being_newer() -> None:
    ledger = accept(Ledger(), [good(id="first")], "guess", "first", NOW)
    with pytest.raises(UserError, match=r"another sampling than the base, run first; .* --run warm"):
        accept(ledger, [good(id="first"), good(id="warm", **WARM)], "guess", "newer", NOW)
    moved = accept(ledger, [good(id="first"), good(id="warm", **WARM)], "guess", "meant", NOW, "warm")
    assert [one.run for one in moved.accepted] == ["warm"]


def test_a_named_run_is_accepted_where_a_newer_one_is_not_sound() -> None:
    runs = [good(id="sound"), good(id="quick", indicative=True)]
    (entry,) = accept(Ledger(), runs, "guess", "the one that can be quoted", NOW, "sound").accepted
    assert entry.run == "sound"
    with pytest.raises(UserError, match=r"indicative.* --run"):
        accept(Ledger(), runs, "guess", "the one that cannot", NOW, "quick")


def test_a_floor_is_of_the_setting_that_it_was_measured_in() -> None:
    run, (_, own) = good(id="first")
    ledger = accept(Ledger(), [good(id="first")], "guess", "first", NOW)
    shorter = replace(run, generation=replace(run.generation, max_new_tokens=7))
    assert ledger.floor_of(run, "guess-k4", options_text(own)) == pytest.approx(3.4)
    assert ledger.floor_of(shorter, "guess-k4", options_text(own)) is None
    assert isinstance(run.generation, Generation)


def test_two_who_accept_at_once_lose_nothing(tmp_path: Path) -> None:
    def add(name: str) -> None:
        with moving(tmp_path) as ledger:
            time.sleep(0.05)
            floor = Floor("tiny-target", "chat", name, 1.5, "by hand")
            write_ledger(tmp_path, replace(ledger, floors=(*ledger.floors, floor)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcd"))
    assert [floor.arm for floor in read_ledger(tmp_path).floors] == list("abcd")


@pytest.mark.parametrize(
    "words",
    [
        ("--against", "HEAD"),
        ("--history",),
        ("--candidate", "x"),
        ("--suite", "x"),
        ("--sessions", "2"),
        ("--limit", "0.5"),
        ("--acceptance-limit", "0.5"),
    ],
)
def test_accepting_judges_nothing(root: Path, words: tuple[str, ...]) -> None:
    shown = call(root, "--accept", "guess-k4", "--because", "first", *words)
    assert isinstance(shown.exception, UserError) and f"so {words[0]} has no meaning" in str(shown.exception)
    assert not (root / "results" / FILE).exists()


def test_a_run_is_named_on_the_command_line(root: Path) -> None:
    assert call(root, "--accept", "guess", "--because", "first", "--run", "fir").exit_code == 0
    wrong = call(root, "--accept", "guess", "--because", "first", "--run", "frist")
    assert isinstance(wrong.exception, UserError) and "did you mean 'first'" in str(wrong.exception)


def test_a_failing_gate_has_its_summary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(root / "summary.md"))
    call(root, "--accept", "guess-k4", "--because", "first")
    Store(root / "worse").write_run(*good(7, id="worse", accepted=2))
    shown = call(root, "--candidate", str(root / "worse"))
    assert shown.exit_code == 1 and "regression" in shown.output
    assert "regression (exit code 1" in (root / "summary.md").read_text()


def test_a_first_gate_says_how_a_base_is_made(root: Path) -> None:
    shown = call(root, "--candidate", str(root / "same"))
    assert shown.exit_code == 5 and "draftboard gate --accept" in shown.stderr


@pytest.mark.parametrize(("accepted", "code"), [(True, 1), (False, 5)])
def test_a_candidate_that_measured_nothing_is_no_pass(
    root: Path, accepted: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where a base could be measured, and has its report."""
    if accepted:
        call(root, "--accept", "guess-k4", "--because", "first")
    monkeypatch.setattr(anew, "plans_of", lambda *given: [])
    monkeypatch.setattr(anew, "task_names", lambda plans: {"chat"})
    monkeypatch.setattr(anew, "measured", lambda *given: iter([[]]))
    shown = call(root, "--format", "json", "--out", str(root / "ruling.json"), "--history")
    assert shown.exit_code == code
    found = json.loads((root / "ruling.json").read_text())
    assert [one["check"] for one in found["findings"]] == ["presence"] * accepted
    assert found["exit_code"] == code


def test_the_only_task_that_fails_is_missing_and_no_mistake_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*given: object, **more: object) -> list[str]:
        raise UserError("no room")

    monkeypatch.setattr(commands, "run_plans", lost)
    assert next(anew.measured([], tmp_path / "work", Console())) == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be made a folder: .*; name another with --work"):
        next(anew.measured([], tmp_path / "file", Console()))


def test_a_run_that_is_named_is_judged_on_its_task_alone(root: Path) -> None:
    """The base has two tasks; a folder that lacks one of them has lost it."""
    run, arms = good(3, id="other")
    task = replace(run.task, name="code", sha256="0" * 64)
    Store(root / "results").write_run(replace(run, task=task), arms)
    for arm in ("plain", "guess-k4"):
        assert call(root, "--accept", arm, "--because", "first").exit_code == 0
    assert call(root, "--candidate", "first").exit_code == 0
    folder = next((root / "same").glob("*/same"))
    assert call(root, "--candidate", str(folder)).exit_code == 0
    assert call(root, "--candidate", str(root / "same")).exit_code == 1


@pytest.mark.parametrize(
    "because", ["faster \U0001f680", 'a "quote", a \\ and\na line', "DEL \x7f", "ä\u2028"]
)
def test_any_text_is_a_reason_that_can_be_read_again(tmp_path: Path, because: str) -> None:
    ledger = accept(Ledger(), [good()], "guess-k4", because, NOW)
    write_ledger(tmp_path, ledger)
    assert read_ledger(tmp_path) == ledger


def test_a_reason_that_is_no_text_is_refused_and_the_ledger_stays(root: Path) -> None:
    call(root, "--accept", "guess-k4", "--because", "first")
    kept = (root / "results" / FILE).read_text()
    shown = call(root, "--accept", "guess-k4", "--because", "\udcff")
    assert isinstance(shown.exception, UserError) and "no text in UTF-8" in str(shown.exception)
    assert (root / "results" / FILE).read_text() == kept


def test_an_unsound_run_of_another_machine_is_not_in_the_way() -> None:
    theirs = good(id="theirs", fingerprint="e" * 12, environment=changed(git_dirty=True))
    (entry,) = accept(Ledger(), [theirs, good(id="ours")], "guess-k4", "first", NOW).accepted
    assert (entry.run, entry.fingerprint) == ("ours", "f" * 12)


@pytest.mark.parametrize("wrong", [{"arm": "guess-k44"}, {"options": '{"n": 9}'}])
def test_an_entry_that_is_not_what_its_run_says_is_refused(root: Path, wrong: dict[str, str]) -> None:
    call(root, "--accept", "guess-k4", "--because", "first")
    results = root / "results"
    write_ledger(
        results, replace(ledger := read_ledger(results), accepted=(replace(ledger.accepted[0], **wrong),))
    )
    shown = call(root, "--candidate", str(root / "same"))
    assert isinstance(shown.exception, UserError) and "is guess-k4 with other options" in str(shown.exception)


def test_a_file_of_the_ruling_has_the_outcome_on_the_screen_too(root: Path) -> None:
    shown = call(root, "--candidate", str(root / "same"), "--format", "json", "--out", str(root / "x.json"))
    assert f"nothing comparable (exit code 5, 1 session); more in {root / 'x.json'}" in shown.stderr


def test_runs_of_two_machines_are_no_candidate(root: Path) -> None:
    Store(root / "same").write_run(*good(4, id="there", fingerprint="e" * 12, testbed="there"))
    shown = call(root, "--candidate", str(root / "same"))
    assert isinstance(shown.exception, UserError) and "runs of 2 machines" in str(shown.exception)


def bases_of(tmp_path: Path, *accepted: tuple[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """The accepted runs, each with the arms that are compared, after these arms of these runs were."""
    march, april = (f"2026-0{month}-01T00:00:00Z" for month in (3, 4))
    runs = [good(id="april", created_utc=april), good(id="march", created_utc=march)]
    for one in runs:
        Store(tmp_path).write_run(*one)
    ledger = Ledger()
    for run, arm in accepted:
        ledger = accept(ledger, runs, arm, "because", NOW, run)
    write_ledger(tmp_path, ledger)
    return [(run.id, run.arms) for run, _ in accepted_runs(tmp_path, "f" * 12)]


def test_plain_decoding_is_compared_with_the_accepted_one(tmp_path: Path) -> None:
    assert bases_of(tmp_path, ("april", "guess-k4"), ("march", "plain")) == [
        ("march", ("base0001",)),
        ("april", ("arm00001",)),
    ]


def test_of_several_yardsticks_the_newest_is_compared_and_none_vanishes(tmp_path: Path) -> None:
    """Arms that were accepted apart bring a baseline each, of different settings for instance."""
    run, (plain, first) = good(id="march", created_utc="2026-03-01T00:00:00Z")
    second = replace(first, id="arm00002", drafter="other")
    old = replace(run, arms=(plain.id, second.id), generation=replace(run.generation, max_new_tokens=99))
    Store(tmp_path).write_run(old, [plain, second])
    new = good(2, id="april", created_utc="2026-04-01T00:00:00Z")
    Store(tmp_path).write_run(*new)
    ledger = accept(Ledger(), [(old, [plain, second])], "other", "first", NOW)
    write_ledger(tmp_path, accept(ledger, [new], "guess-k4", "then", NOW))
    base = accepted_runs(tmp_path, "f" * 12)
    assert [run.arms for run, _ in base] == [("arm00002",), ("base0001", "arm00001")]
    both = replace(new[0], arms=("base0001", "arm00001", "arm00002")), [*new[1], second]
    ruling = Trial(Limits(), one_machine=False).add(base, [both])
    assert not ruling.comparison.vanished
    assert [(one.base.arm.id, one.fields) for one in ruling.comparison.refused] == [
        ("arm00002", ("reply limit and template",))
    ]


@pytest.mark.parametrize(
    ("newer", "said"),
    [({"prompts": 24}, "fewer prompts"), ({"repeats": 1}, "fewer repeats")],
)
def test_a_part_of_the_base_is_no_successor(newer: dict[str, int], said: str) -> None:
    first, later = (side(1, **{"prompts": 32, "repeats": 2, "id": name, **own}) for name, own in
                    (("first", {}), ("later", newer)))  # fmt: skip
    ledger = accept(Ledger(), [first], "guess", "first", NOW)
    with pytest.raises(UserError, match=f"it has {said} than the base, run first"):
        accept(ledger, [first, later], "guess", "newer", NOW)
    assert accept(ledger, [first, later], "guess", "meant", NOW, "later").accepted[0].run == "later"


def test_a_run_that_left_prompts_out_is_never_accepted() -> None:
    with pytest.raises(UserError, match="left out 1 of the task's prompts"):
        accept(Ledger(), [good(left_out={"p99": 4000})], "guess", "short caches", NOW)


def test_an_entry_that_names_a_run_of_something_else_is_refused(root: Path) -> None:
    call(root, "--accept", "guess-k4", "--because", "first")
    ledger = read_ledger(root / "results")
    write_ledger(root / "results", replace(ledger, accepted=(replace(ledger.accepted[0], task="code"),)))
    shown = call(root, "--candidate", str(root / "same"))
    assert isinstance(shown.exception, UserError) and "run first is not of code" in str(shown.exception)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "over", pytest.fail)
    shown = call(root, "--candidate", str(root / "same"), "--format", "json", "--out", str(root))
    assert isinstance(shown.exception, UserError) and "is a folder" in str(shown.exception)


def test_an_output_that_cannot_be_written_after_all_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    shown = call(root, "--candidate", str(root / "same"), "--format", "json", "--out", str(root / "x.json"))
    assert shown.exit_code == 5 and "No space left on device; this was for it" in shown.stderr
    assert json.loads(shown.stdout)["outcome"] == "nothing comparable"


def test_a_summary_that_cannot_be_written_changes_no_verdict(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(root / "nowhere" / "summary.md"))
    for arm in ("plain", "guess-k4"):
        call(root, "--accept", arm, "--because", "first")
    shown = call(root, "--candidate", str(root / "same"))
    assert shown.exit_code == 0 and "no job summary in" in shown.stderr
