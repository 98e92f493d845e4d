"""What a user gets wrong is one line that names it, never a fault of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftboard.cli import app
from draftboard.errors import UserError
from draftboard.measure import commands
from draftboard.record.store import Store
from draftboard_drafters.training.replies import Replies
from draftboard_drafters.training.tables import tables
from record_factory import make_run, random_arms


@pytest.mark.parametrize("k", ["²", "1,٣x", "-1", "2.5"])
def test_k_that_is_no_number_is_refused(k: str) -> None:
    found = CliRunner().invoke(app, ["run", "--dry-run", "--k", k])
    assert isinstance(found.exception, UserError)
    assert "--k takes whole numbers" in str(found.exception)


def test_a_context_of_nothing_is_refused() -> None:
    assert CliRunner().invoke(app, ["doctor", "--context", "0"]).exit_code == 2


@pytest.mark.parametrize("content", ["[" * 200_000, None], ids=["nested too deep", "a folder"])
def test_a_record_that_is_none_is_named(content: str | None, tmp_path: Path) -> None:
    arms, store = random_arms(1, prompts=1), Store(tmp_path)
    file = store.write_run(make_run(arms), list(arms)) / "run.json"
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_text(content)
    with pytest.raises(UserError, match=r"run\.json.*; restore the file or remove it"):
        store.runs()


def test_results_that_cannot_be_written_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"cannot be made a folder: .*; name another folder of results with --out"
    ):
        commands.run_plans([], tmp_path / "file", None, resume=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["{", '{"prompt": [1]}', "[1, 2]"])
def test_a_damaged_reply_is_named_by_file_and_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    file.write_text('{"prompt": [1], "response": [2]}\n' + line + "\n")
    with pytest.raises(UserError, match=r"replies\.jsonl, line 2: not a reply"):
        list(Replies(file))


def test_a_damaged_card_is_named(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "card.json").write_text("{")
    with pytest.raises(UserError, match=r"card\.json cannot be read"):
        tables(tmp_path)


def test_only_arms_that_were_asked_for_are_said_to_be_left_out() -> None:
    plans = commands.make_plans("quick", {"target": "other"}, ["ngram"], (), {}, Path(), "cpu", "")
    assert commands.left_out("quick", plans, ["ngram"]) is None
    assert "eagle3" in (commands.left_out("quick", plans) or "")


def test_an_arm_that_is_measured_with_other_weights_is_not_said_to_be_left_out() -> None:
    flags = ({"target": "other"}, ["eagle3"], (), {"checkpoint": "org/eagle"}, Path(), "cpu", "")
    plans = commands.make_plans("quick", *flags)
    assert [arm.drafter for arm in plans[0].arms if arm.drafter != "none"] == ["eagle3"]
    assert commands.left_out("quick", plans, ["eagle3"]) is None
