"""`draftboard compare`: how a side is named, and the formats it writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from draftboard.cli import app
from draftboard.errors import UserError
from draftboard.record.sides import read_side
from draftboard.record.store import Store, write_schemas
from sides import side, without


def call(root: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words, "--root", str(root)], catch_exceptions=False)


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose first commit has one run and whose working tree has two."""
    store = Store(tmp_path / "results")
    write_schemas(store.root / "schema")
    store.write_run(*side(1))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    store.write_run(*side(2, slow_arm=1.2, id="second", created_utc="2026-02-01T00:00:00Z"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "runs"),
    [("HEAD", ["run1"]), ("sec", ["second"]), ("run1", ["run1"]), ("{root}/results", ["run1", "second"])],
)
def test_sides(root: Path, text: str, runs: Sequence[str]) -> None:
    assert [run.id for run, _ in read_side(text.format(root=root), root).runs] == runs


def test_a_testbeds_folder_is_a_side(root: Path) -> None:
    bed = next((root / "results").glob("*/run1")).parent
    assert [run.id for run, _ in read_side(str(bed), root).runs] == ["run1", "second"]


@pytest.mark.parametrize(
    "text", ["nothing", "--all", "-h", "a b", "HEAD..HEAD", "HEAD^{tree}", "$(id)", "ü", ""]
)
def test_a_side_that_is_nothing(root: Path, text: str) -> None:
    with pytest.raises(UserError, match="no folder, no run in"):
        read_side(text, root)


DAMAGES = {
    "NaN": lambda data: data.replace('"concurrency": 1', '"concurrency": NaN'),
    "missing field": lambda data: data.replace('"dtype"', '"type"'),
    "conflict": lambda data: f"<<<<<<< ours\n{data}=======\n{data}>>>>>>> theirs\n",
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: "",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_that_names_it(root: Path, damage: str) -> None:
    file = next((root / "results").glob("*/second/run.json"))
    file.write_text(DAMAGES[damage](file.read_text()))
    with pytest.raises(UserError, match=r"second/run\.json: [^\n]*$"):
        call(root, "HEAD", str(file.parent))


def test_a_commit_without_results_is_an_empty_side(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "empty")
    assert read_side("HEAD", tmp_path).runs == []


def test_the_table_names_figures_and_words(root: Path) -> None:
    shown = call(root, "HEAD", "second")
    assert shown.exit_code == 0
    assert "guess-k4" in shown.output and "worse" in shown.output and "same" in shown.output


def test_sides_without_a_common_task_have_a_line_and_a_code(root: Path) -> None:
    run, arms = side(3, id="other", created_utc="2026-02-02T00:00:00Z")
    task = replace(run.task, name="code", sha256="0" * 64)
    Store(root / "results").write_run(replace(run, task=task), arms)
    shown = call(root, "second", "other")
    assert shown.exit_code == 5
    assert "nothing comparable in second and other" in shown.stderr
    assert "chat plain: only in the base" in shown.stdout and "verdict" not in shown.stdout


def test_prompts_that_were_left_out_are_told(root: Path) -> None:
    Store(root / "results").write_run(*side(3, id="third", left_out={"long-one": 9000}))
    shown = call(root, "second", "third")
    assert "run third: left out, longer than the caches may be: long-one" in " ".join(shown.output.split())


def test_a_figure_that_is_called_by_its_unit_is_named_once(root: Path) -> None:
    assert "tokens/s, tokens/s" not in call(root, "HEAD", "second", "--format", "markdown").output


def test_json_names_what_was_not_compared(root: Path) -> None:
    run, (plain, arm) = side(3, arm={"options": {"n": 9}})
    more = replace(arm, id="arm00002", k=9)
    Store(root / "more").write_run(replace(run, arms=(plain.id, arm.id, more.id)), [plain, arm, more])
    found = json.loads(call(root, "HEAD", str(root / "more"), "--format", "json").output)
    assert (found["format"], found["one_machine"], found["vanished"]) == (1, False, [])
    assert [(one["arm"], one["fields"], one["base_run"]) for one in found["refused"]] == [
        ("guess-k4", ["options"], "run1")
    ]
    assert [(one["arm"], one["arm_id"]) for one in found["new"]] == [("guess-k9", "arm00002")]
    rows = json.loads(call(root, "HEAD", str(root / "more"), "--format", "benchmark-action").output)
    told = {row["name"]: row["extra"] for row in rows}
    assert told["chat/guess-k9/speedup"].startswith("unknown: nothing to compare it with, run run1, commit")
    assert "%" in told["chat/plain/tokens_per_s"] and "chat/guess-k4/acceptance_length" in told


def test_stored_runs_are_of_days_that_differ(root: Path) -> None:
    assert "the machine's mood" in " ".join(call(root, "HEAD", "second").output.split())


def test_a_record_in_a_commit_that_cannot_be_read_names_the_commit(root: Path) -> None:
    file = next((root / "results").glob("*/run1/run.json"))
    file.write_text("{")
    git(root, "commit", "-q", "-a", "-m", "broken")
    git(root, "checkout", "-q", "HEAD^", "--", "results")
    with pytest.raises(UserError, match=r"in commit HEAD: results/\S+/run1/run.json: "):
        read_side("HEAD", root)


def test_json_is_strict_and_complete(root: Path) -> None:
    found = json.loads(call(root, "HEAD", "second", "--format", "json").output, parse_constant=pytest.fail)
    figures = {arm["arm"]: arm["figures"] for arm in found["arms"]}
    assert figures["guess-k4"]["speedup"]["word"] == "worse"
    assert figures["guess-k4"]["memory_mb"]["log_change"] is None


def test_junit_counts_what_it_lists(root: Path) -> None:
    found = ElementTree.fromstring(call(root, "HEAD", "second", "--format", "junit").output)
    cases = found.findall("testcase")
    assert found.get("tests") == str(len(cases))
    words = {(c.get("classname"), c.get("name")): c.findtext("system-out") for c in cases}
    assert str(words["chat.guess-k4", "speedup"]).endswith(": worse")


def test_the_job_summary_gets_markdown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(root / "summary.md"))
    call(root, "HEAD", "second", "--format", "benchmark-action", "--out", str(root / "b.json"))
    assert "| chat | guess-k4 |" in (root / "summary.md").read_text()
    rows = json.loads((root / "b.json").read_text())
    assert {row["name"] for row in rows} >= {"chat/guess-k4/speedup", "chat/plain/tokens_per_s"}
    assert all(row["value"] > 0 for row in rows)
    assert not any("memory" in row["name"] for row in rows)


def test_a_checkout_is_the_runs_in_its_results(root: Path) -> None:
    assert [run.id for run, _ in read_side(str(root), root).runs] == ["run1", "second"]


def test_a_folder_hides_a_ref_of_its_name_only_when_runs_are_in_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "empty").mkdir()
    for name in ("empty", "results"):
        git(root, "branch", name)
    sides = {
        text: [run.id for run, _ in read_side(text, root).runs]
        for text in ("results", "refs/heads/results", "empty")
    }
    assert sides == {"results": ["run1", "second"], "refs/heads/results": ["run1"], "empty": ["run1"]}


def test_junit_of_a_comparison_decides_nothing(root: Path) -> None:
    lost = root / "lost"
    Store(lost).write_run(*without(side(3, slow_arm=9.0), "arm00001"))
    found = ElementTree.fromstring(call(root, "HEAD", str(lost), "--format", "junit").output)
    cases = {(c.get("classname"), c.get("name")): c for c in found.findall("testcase")}
    assert (found.get("failures"), found.get("errors"), found.get("skipped")) == ("0", "0", "1")
    gone = cases["chat.guess-k4", "presence"].find("skipped")
    assert gone is not None and gone.get("message") == "only in the base"
    figure = cases["chat.plain", "tokens_per_s"].find("system-out")
    assert figure is not None and str(figure.text).endswith("no difference found")


@pytest.mark.parametrize("form", ["table", "markdown", "json", "junit"])
def test_figures_that_their_record_denies_are_shown_with_that(form: str, root: Path) -> None:
    run, arms = side(3, id="third", created_utc="2026-03-01T00:00:00Z")
    guessing = arms[1].traces
    twice = replace(arms[1], traces=(*guessing, guessing[0]))
    Store(root / "results").write_run(run, [arms[0], twice])
    said = " ".join(call(root, "run1", "third", "--format", form).output.split())
    assert "the record contradicts itself" in said and "recorded 2 times" in said
    assert "the record contradicts itself" not in call(root, "run1", "second", "--format", form).output


def test_a_base_whose_replies_nobody_compared_is_shown_as_such(root: Path) -> None:
    run, arms = side(3, id="third", created_utc="2026-03-01T00:00:00Z", arm={"losslessness": None})
    Store(root / "results").write_run(run, arms)
    for sides in (("third", "second"), ("second", "third")):
        said = " ".join(call(root, *sides, "--format", "markdown").output.split())
        assert "losslessness: " in said
        assert ("losslessness: the base's run: " in said) is (sides[0] == "third")
