"""A ruling as a comment, as JUnit XML and as JSON, whatever an error's text holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from draftboard.judge.findings import Limits
from draftboard.judge.gate import Ruling, Trial
from draftboard.judge.pairing import Run
from draftboard.record.records import Validity
from draftboard.show import comparison
from draftboard.show.comparison_files import RULING_FORMATS
from record_factory import ENVIRONMENT
from sides import side


@pytest.fixture(scope="module")
def failing() -> Ruling:
    nasty = {"error": "boom <b>|\x00\x1b[31m\nover"}
    return Trial(Limits(), one_machine=True).add([side(1)], [side(2, arm=nasty)])


def test_the_comment_begins_with_its_mark_and_the_outcome(failing: Ruling) -> None:
    first, *rest = RULING_FORMATS["markdown"](failing).splitlines()
    assert first == "### draftboard gate: regression (exit code 1, 1 session)"
    text = "\n".join(rest)
    assert "&lt;b&gt;\\|" in text and "<b>" not in text and "\x1b" not in text
    told = text.partition("<details>")[0]
    assert "guess-k4, presence: failed: boom" in told and "pass:" not in told


def test_junit_can_be_parsed_and_tells_failures_from_doubts(failing: Ruling) -> None:
    found = ElementTree.fromstring(RULING_FORMATS["junit"](failing))
    failed = [case.get("name") for case in found if case.find("failure") is not None]
    in_doubt = [case.get("name") for case in found if case.find("error") is not None]
    assert (failed, in_doubt) == (["presence"], [])
    assert (found.get("failures"), found.get("errors")) == ("1", "0")
    disturbed = side(2, arm={"validity": Validity(("others used the cores",))})
    unsure = Trial(Limits(), one_machine=False).add([side(1)], [disturbed])
    found = ElementTree.fromstring(RULING_FORMATS["junit"](unsure))
    in_doubt = [case.get("name") for case in found if case.find("error") is not None]
    assert in_doubt == ["validity"] and found.get("errors") == str(len(in_doubt))


def test_json_holds_the_outcome_and_no_nan(failing: Ruling) -> None:
    found = json.loads(RULING_FORMATS["json"](failing), parse_constant=pytest.fail)
    assert (found["outcome"], found["exit_code"]) == ("regression", 1)
    figures = {arm["arm"]: arm["figures"] for arm in found["arms"]}
    assert figures["guess-k4"]["speedup"]["candidate"] is None
    assert figures["guess-k4"]["speedup"]["missing"]


def test_the_terminal_ends_with_the_outcome(failing: Ruling) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(comparison.ruling(failing))
    assert captured.get().rstrip().endswith("regression (exit code 1, 1 session)")


HOSTILE = 'x`](http://e)|\\|<img src=x onerror=y>*&"\x00\u202e-->'


@pytest.fixture(scope="module")
def hostile() -> Ruling:
    def named(run: Run) -> Run:
        record, (plain, own) = run
        return record, [plain, replace(own, drafter=HOSTILE)]

    return Trial(Limits(), one_machine=True).add([named(side(1))], [named(side(2))])


def test_a_hostile_name_is_text_in_every_format(hostile: Ruling) -> None:
    body = RULING_FORMATS["markdown"](hostile)
    assert "<img" not in body and "-->" not in body and "\u202e" not in body and "\x00" not in body
    assert not re.search(r"(?<!\\)[`\[\]*]", body.replace("\\\\", ""))
    rows = [line for line in body.replace("\\\\", "").splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(comparison.HEADS) + 1}
    cases = ElementTree.fromstring(RULING_FORMATS["junit"](hostile)).findall("testcase")
    assert any("onerror" in str(case.get("classname")) for case in cases)
    assert HOSTILE in json.loads(RULING_FORMATS["json"](hostile))["arms"][1]["arm"]
    assert any(HOSTILE in row["name"] for row in json.loads(RULING_FORMATS["benchmark-action"](hostile)))


def test_every_format_names_the_commits_of_both_sides() -> None:
    """A tree with changes of its own has a plus; without git the commit is not known."""
    named = replace(ENVIRONMENT, git_sha="c" * 40, git_dirty=True)
    bare = replace(ENVIRONMENT, git_sha=None, git_dirty=None)
    ruling = Trial(Limits(), one_machine=True).add([side(1, environment=bare)], [side(2, environment=named)])
    for name in ("markdown", "junit"):
        assert f"{'c' * 12}+ against an unknown commit" in RULING_FORMATS[name](ruling)
    for arm in json.loads(RULING_FORMATS["json"](ruling))["arms"]:
        assert (arm["base_commit"], arm["candidate_commit"]) == ("an unknown commit", f"{'c' * 12}+")
    for row in json.loads(RULING_FORMATS["benchmark-action"](ruling)):
        assert row["extra"].endswith(f"commit {'c' * 12}+")


def test_arms_of_one_name_are_told_apart() -> None:
    run, (plain, first) = side(1)
    second = replace(first, id="arm00002", options={"n": 9})
    both = replace(run, arms=(plain.id, first.id, second.id)), [plain, first, second]
    ruling = Trial(Limits(), one_machine=True).add([both], [both])
    names = [row["name"] for row in json.loads(RULING_FORMATS["benchmark-action"](ruling))]
    assert len(set(names)) == len(names) and "chat/guess-k4 (arm00002)/speedup" in names
