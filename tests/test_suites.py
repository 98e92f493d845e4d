"""Suites are data: read strictly, expanded plainly, overridden by flags without surprises."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.record.suites import ArmSpec, Suite, list_suites, load_suite

TEXT = """
title = "T"
target = "some/model"
plugins = "my_drafters"
baseline = "plain"
tasks = ["chat", "code"]
max_new_tokens = 32

[[arms]]
drafter = "plain"

[[arms]]
drafter = "lookup"
k = [4, 8]
options = { min_n = 2, policy = "latest" }

[[arms]]
drafter = "head"
k = 3
"""
LOOKUP = {"min_n": 2, "policy": "latest"}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return read(tmp_path, TEXT)


def read(folder: Path, text: str) -> Suite:
    (folder / "mine.toml").write_text(text)
    return load_suite("mine", folder)


def arms(suite: Suite) -> list[tuple[str, int | None]]:
    return [(arm.drafter, arm.k) for arm in suite.arms]


def test_a_file_becomes_a_suite_and_a_list_of_k_becomes_arms(suite: Suite) -> None:
    assert (suite.name, suite.tasks, suite.revision) == ("mine", ("chat", "code"), None)
    assert suite.arms == (
        ArmSpec("plain"),
        ArmSpec("lookup", 4, LOOKUP),
        ArmSpec("lookup", 8, LOOKUP),
        ArmSpec("head", 3),
    )
    assert (suite.limit, suite.repeats, suite.dtype, suite.temperature) == (None, 1, "auto", 0.0)


def test_a_path_works_as_well_as_a_name(tmp_path: Path, suite: Suite) -> None:
    assert load_suite(str(tmp_path / "mine.toml")) == suite


@pytest.mark.parametrize(
    "line, message",
    [
        ("max_tokens = 3", r"mine\.toml; did you mean 'max_new_tokens'"),
        ('name = "other"', r"key 'name' not found in .*mine\.toml"),
        ("limit = 'six'", r"mine\.toml: suite\.limit: expected int, found 'six'"),
        ("limit = true", r"mine\.toml: suite\.limit: expected int, found True"),
        ("temperature = '0'", r"mine\.toml: suite\.temperature: expected float"),
        ("dtype = 'fp32'", r"mine\.toml: suite\.dtype: expected one of auto, float32"),
        ("limit = 0", "limit must be at least 1, found 0"),
        ("repeats = 0", "repeats must be at least 1"),
        ("warmup = -1", "warmup must be at least 0"),
        ("verify_repeats = -1", "verify_repeats must be at least 0"),
        ("temperature = -0.5", "temperature must be at least 0"),
        ("temperature = nan", r"mine\.toml: suite\.temperature: expected a finite number, found nan"),
        ("temperature = inf", r"suite\.temperature: expected a finite number, found inf"),
        ("top_k = 0", "top_k must be at least 1"),
        ("top_p = 0", "top_p must be above 0 and at most 1"),
        ("top_p = 1.5", "top_p must be above 0 and at most 1"),
        ("a = ", "mine.toml cannot be read"),
    ],
)
def test_a_wrong_setting_is_refused_by_file_and_key(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, line + "\n" + TEXT)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("k = 3", "kk = 3", r"key 'kk' not found in .*mine\.toml: arms\[2\]"),
        ("k = 3", "k = 0", "k must be at least 1, found "),
        ("k = 3", "k = []", r"arms\[2\]: k is an empty list"),
        ("k = 3", "k = [3, 3]", "each arm once"),
        ("k = 3", "k = 1.5", r"suite\.arms.*: expected int, found 1\.5"),
        ("k = 3", "k = [true]", r"suite\.arms.*: expected int, found True"),
        ('baseline = "plain"', 'baseline = "plane"', "baseline 'plane' not found.*did you mean 'plain'"),
        ('tasks = ["chat", "code"]', "tasks = []", "at least one task"),
        ('tasks = ["chat", "code"]', 'tasks = ["chat", "chat"]', "each once"),
        ('tasks = ["chat", "code"]', 'tasks = "chat"', r"suite\.tasks: expected list, found 'chat'"),
        ('target = "some/model"', "", "with the key 'target'"),
    ],
)
def test_a_wrong_arm_or_task_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UserError, match=message):
        read(tmp_path, TEXT.replace(old, new))


def test_arms_that_are_not_tables_are_refused(tmp_path: Path) -> None:
    text = TEXT[: TEXT.index("[[arms]]")] + 'arms = ["plain"]\n'
    with pytest.raises(UserError, match=r"each headed \[\[arms\]\]"):
        read(tmp_path, text)


def test_a_misspelt_suite_is_met_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"suite 'quik' not found in .*; did you mean 'quick'\?"):
        load_suite("quik")


def test_flags_replace_fields_and_a_flag_not_given_replaces_nothing(suite: Suite) -> None:
    changed = suite.override(limit=3, tasks=("copy",), target=None, temperature=0.7)
    assert (changed.limit, changed.tasks, changed.temperature) == (3, ("copy",), 0.7)
    assert changed.target == suite.target
    assert dataclasses.replace(changed, limit=None, tasks=suite.tasks, temperature=0.0) == suite
    assert suite.override(temperature=0.0).temperature == 0.0


def test_a_revision_stays_with_its_target(suite: Suite) -> None:
    pinned = suite.override(revision="abc")
    assert pinned.override(limit=1, target=suite.target).revision == "abc"
    assert pinned.override(target="other/model", revision=None).revision is None
    assert pinned.override(target="other/model", revision="def").revision == "def"


def test_flags_are_checked_like_the_file(suite: Suite) -> None:
    with pytest.raises(UserError, match="did you mean 'temperature'"):
        suite.override(temprature=1.0)
    with pytest.raises(UserError, match="limit must be at least 1"):
        suite.override(limit=0)


@pytest.mark.parametrize(
    "drafters, ks, expected",
    [
        ([], [], [("plain", None), ("lookup", 4), ("lookup", 8), ("head", 3)]),
        (["lookup"], [], [("plain", None), ("lookup", 4), ("lookup", 8)]),
        (["head", "lookup"], [], [("plain", None), ("head", 3), ("lookup", 4), ("lookup", 8)]),
        (["plain"], [], [("plain", None)]),
        ([], [1, 2], [("plain", None), ("lookup", 1), ("lookup", 2), ("head", 1), ("head", 2)]),
        (["lookup", "lookup"], [2, 2], [("plain", None), ("lookup", 2)]),
        (["my.module"], [], [("plain", None), ("my.module", None)]),
        (["my.module"], [5], [("plain", None), ("my.module", 5)]),
    ],
)
def test_choosing_drafters_and_k_always_keeps_the_baseline(
    suite: Suite, drafters: list[str], ks: list[int], expected: list[tuple[str, int | None]]
) -> None:
    assert arms(suite.choose(drafters, ks)) == expected


def test_a_chosen_arm_keeps_the_options_of_the_suite(suite: Suite) -> None:
    assert [arm.options for arm in suite.choose(["lookup"], [1]).arms] == [{}, LOOKUP]


TRAINED = [(name, 3) for name in ("draft_model", "eagle3", "mtp", "dflash", "dspark")]


@pytest.mark.parametrize(
    "name, limit, max_new_tokens, indicative, ks",
    [
        ("smoke", 1, 8, True, [4]),
        ("quick", 2, 64, True, [8]),
        ("standard", 32, 128, False, [3, 7]),
    ],
)
def test_the_shipped_suites_are_what_the_documents_say(
    name: str, limit: int, max_new_tokens: int, indicative: bool, ks: list[int]
) -> None:
    suite = load_suite(name)
    assert (suite.limit, suite.max_new_tokens, suite.indicative) == (limit, max_new_tokens, indicative)
    trained = [] if name == "smoke" else TRAINED
    assert arms(suite) == [("none", None), *trained, *(("ngram", k) for k in ks)]
    assert (suite.baseline, suite.tasks, suite.temperature) == ("none", ("chat", "code", "copy"), 0.0)
    assert suite.target == "smollm2-135m-instruct-q4_1"


def test_another_target_leaves_out_the_arms_that_only_fit_the_suites_own() -> None:
    quick = load_suite("quick")
    assert {arm.target for arm in quick.arms} == {None, quick.target}
    assert arms(quick.override(target="some-org/some-model")) == [("none", None), ("ngram", 8)]
    assert arms(quick.override(target=quick.target, limit=2)) == arms(quick)


def test_every_suite_in_the_folder_can_be_read() -> None:
    assert [load_suite(name).name for name in list_suites()] == list_suites()


def test_reading_a_suite_does_not_load_torch() -> None:
    code = "import sys; from draftboard.record.suites import load_suite as load; load('quick'); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_gates_suite_takes_no_time_for_what_is_not_judged() -> None:
    gate = load_suite("gate")
    assert (gate.telemetry_s, gate.verify_repeats, gate.repeats, gate.limit) == (0, 0, 1, None)
    assert (gate.max_new_tokens, arms(gate)) == (8, [("none", None), ("ngram", 4)])
