"""Published figures: read strictly, put beside a row of the same setting, refused beside any other."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftboard.errors import UserError
from draftboard.judge.metrics import BY_NAME
from draftboard.judge.published import PublishedMatch, Refusal, find
from draftboard.judge.summary import Row, rows
from draftboard.measure import plugins
from draftboard.record.published import Published, load_published
from draftboard.record.records import Generation, Sampling
from draftboard.record.suites import list_suites, load_suite
from draftboard.show import published as remarks
from draftboard.show import tables
from record_factory import TARGET, make_run, random_arms

SHIPPED = load_published()

FILE = """
title = "A paper"
source = "somewhere, table 1"
second_hand = true

[common]
metric = "acceptance_length"
counted = "as here"

[datasets.GSM8K]
[datasets.MT-Bench]
task = "chat"
turns = 1

[[figures]]
target = "some/target"
drafter = "guess"
k = 7
values = { GSM8K = 2.5, MT-Bench = 2 }

[[figures]]
drafter = "guess"
metric = "tokens_per_s"
values = { GSM8K = 100.0 }
"""


def read(folder: Path, text: str) -> tuple[Published, ...]:
    (folder / "a.toml").write_text(text)
    return load_published(folder)


# Reading


def test_a_file_becomes_one_figure_for_each_value(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, FILE)
    assert (first.dataset, first.value, first.task, first.turns) == ("GSM8K", 2.5, None, None)
    assert (second.dataset, second.value, second.task, second.turns) == ("MT-Bench", 2.0, "chat", 1)
    assert (first.metric, third.metric, third.target, third.k) == (
        "acceptance_length",
        "tokens_per_s",
        None,
        None,
    )
    assert all(one.second_hand and one.title == "A paper" for one in (first, second, third))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k = 7", "kay = 7", r"a\.toml: figures\[0\]: GSM8K.*unknown key 'kay'"),
        ("k = 7", "k = 7.5", r"GSM8K\.k: expected int, found 7\.5"),
        ("turns = 1", "turn = 1", r"figures\[0\]: MT-Bench.*unknown key 'turn'"),
        ("GSM8K = 2.5,", "GSM8k = 2.5,", r"data set 'GSM8k' not found.*did you mean 'GSM8K'"),
        ("GSM8K = 2.5,", 'GSM8K = "2.5",', r"GSM8K\.value: expected float"),
        ("values = { GSM8K = 100.0 }", "", r"figures\[1\]: expected values by data set.*found None"),
        ('counted = "as here"', "", r"with the key 'counted'"),
        ("second_hand = true", "", r"a\.toml: expected .* with the key 'second_hand'"),
        ('title = "A paper"', "title = ", r"a\.toml cannot be read"),
        ('drafter = "guess"\nk = 7', 'drafter = "guess"\nmode = "bush"', r"expected one of chain, tree"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert FILE.count(old) >= 1
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, FILE.replace(old, new))
    assert "\n" not in str(caught.value)


# What is shipped


def test_the_shipped_figures_are_those_of_the_sources() -> None:
    """A cell from every corner of the largest table, and one from every other file."""
    table = {(one.target, one.drafter, one.dataset): one.value for one in SHIPPED if "table 1" in one.title}
    assert len(table) == 4 * 3 * 9
    assert table["Qwen/Qwen3-4B", "eagle3", "GSM8K"] == 5.14
    assert table["Qwen/Qwen3-8B", "dspark", "HumanEval"] == 5.52
    assert table["Qwen/Qwen3-8B", "dspark", "MT-Bench"] == 3.72
    assert table["google/gemma-4-12B-it", "dspark", "Arena-Hard-v2"] == 2.92
    values = Counter((one.title, one.value) for one in SHIPPED)
    for cell in (
        ("SpecForge bundle", 5.403),
        ("Model-Optimizer's DFlash document", 422.0),
        ("Reports on DFlash", 6.17),
        ("Reports on MTP", 2.738),
    ):
        assert values[cell] == 1


def test_every_shipped_figure_names_a_real_metric_task_and_drafter() -> None:
    tasks = set(load_suite("standard").tasks)
    known = plugins.list_drafters("draftboard_drafters")
    for one in SHIPPED:
        assert one.metric is None or one.metric in BY_NAME, one
        assert one.task is None or one.task in tasks, one
        assert one.drafter in known, one
        assert one.source and one.counted and one.value > 0, one


def test_no_setting_is_published_twice() -> None:
    seen = Counter(dataclasses.replace(one, value=0.0) for one in SHIPPED)
    assert max(seen.values()) == 1


def test_checkpoints_of_the_suites_meet_their_figures() -> None:
    """Id by id and K by K: a misspelt id would silently meet none."""
    published: dict[tuple[str | None, str | None], set[int | None]] = {}
    for one in SHIPPED:
        published.setdefault((one.target, one.checkpoint), set()).add(one.k)
    suites = [load_suite(name) for name in list_suites()]
    arms = [(suite.target, arm.options.get("checkpoint"), arm.k) for suite in suites for arm in suite.arms]
    met = [arm for arm in arms if arm[1] and arm[:2] in published]
    assert len(met) == 8
    assert all(k in published[target, checkpoint] for target, checkpoint, k in met)


# Matching


FIGURE = Published(
    value=3.5,
    counted="as here",
    drafter="guess",
    title="A paper",
    source="somewhere",
    second_hand=False,
    dataset="MT-Bench",
    metric="acceptance_length",
    target="tiny-target",
    checkpoint="some/weights",
    task="chat",
    turns=1,
    thinking="off",
    temperature=0.0,
    k=4,
    mode="chain",
    max_new_tokens=2048,
    dtype="float32",
    engine="torch",
)


GREEDY = Sampling()


def a_row(sampling: Sampling = GREEDY, thinking: bool | None = False, **changes: Any) -> Row:
    base, arm = random_arms(1)
    arm = dataclasses.replace(arm, options={"checkpoint": "some/weights"})
    run = make_run(
        [base, arm],
        sampling=sampling,
        generation=Generation(128, 1, "target", None, thinking, (0,)),
        target=TARGET,
    )
    return dataclasses.replace(rows(run, [base, arm])[1], **changes)


def test_the_same_setting_shows_both_and_what_is_left_unlike() -> None:
    row, figures = a_row(), (dataclasses.replace(FIGURE, k=7), FIGURE)
    (match,) = find(row, figures)
    assert match == PublishedMatch(
        FIGURE, "acceptance_length", row.acceptance_length, ("reply limit is 2048 there and 128 here",)
    )


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"target": "other/target"}, "target", "target is other/target there and tiny-target here"),
        ({"drafter": "other"}, "drafter", "drafter is other there and guess here"),
        ({"checkpoint": "other/weights"}, "checkpoint", "other/weights there and some/weights here"),
        ({"checkpoint": None}, "checkpoint", "checkpoint is not stated there"),
        ({"task": "code"}, "task", "task is code there and chat here"),
        ({"turns": 2}, "turns", "turns is 2 there and 1 here"),
        ({"thinking": "on"}, "thinking", "thinking is on there and off here"),
        ({"temperature": 1.0}, "temperature", "temperature is 1 there and 0 here"),
        ({"temperature": None}, "temperature", "temperature is not stated there and 0 here"),
        ({"k": 7}, "K", "K is 7 there and 4 here"),
        ({"mode": "tree"}, "mode", "mode is tree there and chain here"),
        ({"qualifier": "up to"}, "qualifier", "the source says 'up to'"),
        ({"metric": None}, "metric", "no figure here is counted as there: as here"),
        ({"metric": "tokens_per_s", "engine": "vllm"}, "engine", "engine is vllm there and torch here"),
        ({"metric": "tokens_per_s"}, "device", "device is not stated there and Tiny CPU here"),
        (
            {"metric": "tokens_per_s", "device": "Tiny CPU", "batch": 8},
            "concurrency",
            "concurrency is 8 there and 1 here",
        ),
    ],
)
def test_the_first_field_that_differs_is_named(change: dict[str, Any], field: str, reason: str) -> None:
    found = find(a_row(), [dataclasses.replace(FIGURE, **change)])
    assert isinstance(found, Refusal)
    assert found.field == field and reason in found.reason
    assert found.same_subject == (field not in ("target", "drafter", "checkpoint", "task"))


def test_a_timed_figure_matches_on_the_same_engine_device_and_concurrency() -> None:
    timed = dataclasses.replace(FIGURE, metric="tokens_per_s", device="Tiny CPU", batch=1)
    (match,) = find(a_row(), [timed])
    assert match.metric == "tokens_per_s"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (a_row(thinking=None), "thinking"),
        (a_row(Sampling(top_k=20)), "top-k"),
        (a_row(Sampling(top_p=0.9)), "top-p"),
        (a_row(k=5), "K"),
        (a_row(options={}), "checkpoint"),
        (a_row(acceptance_length=None, missing={"acceptance_length": "no round was run"}), "value"),
    ],
)
def test_our_side_is_compared_too(row: Row, field: str) -> None:
    found = find(row, [FIGURE])
    assert isinstance(found, Refusal) and found.field == field


def test_the_refusal_is_that_of_the_nearest_figure() -> None:
    far, near = dataclasses.replace(FIGURE, target="other/target"), dataclasses.replace(FIGURE, k=7)
    for figures in ([far, near], [near, far]):
        found = find(a_row(), figures)
        assert isinstance(found, Refusal) and (found.field, found.nearest) == ("K", near)


def test_nothing_published_is_a_refusal_too() -> None:
    assert find(a_row(), []) == Refusal("target", "no figure is published")


# Showing


def shown(monkeypatch: pytest.MonkeyPatch, row: Row, *figures: Published) -> list[str]:
    monkeypatch.setattr(remarks, "known", lambda: figures)
    return [note for note in tables.notes([row]) if "published" in note]


def test_a_match_stands_under_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    row = a_row()
    (note,) = shown(monkeypatch, row, dataclasses.replace(FIGURE, second_hand=True))
    assert f"published 3.50 | ours {row.acceptance_length:.2f}, E[L] (A paper, MT-Bench: somewhere" in note
    assert "second-hand" in note and "reply limit is 2048 there and 128 here" in note


def test_a_refusal_stands_there_only_for_the_same_checkpoint_and_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (note,) = shown(monkeypatch, a_row(), dataclasses.replace(FIGURE, temperature=1.0))
    assert "published 3.5 is not comparable: temperature is 1 there and 0 here" in note
    assert "ours" not in note
    assert shown(monkeypatch, a_row(), dataclasses.replace(FIGURE, checkpoint="other/weights")) == []
    assert shown(monkeypatch, a_row(error="out of memory"), FIGURE) == []


def test_a_row_of_the_shipped_suite_meets_the_published_table() -> None:
    """The code task at temperature 1, with the drafter and K of the suite."""
    row = a_row(
        Sampling(temperature=1.0),
        target="Qwen/Qwen3-8B",
        task="code",
        temperature=1.0,
        drafter="dspark",
        k=7,
        options={"checkpoint": "deepseek-ai/dspark_qwen3_8b_block7"},
    )
    (match,) = find(row, SHIPPED)
    assert (match.published.value, match.metric) == (5.52, "acceptance_length_deepspec")
    greedy = find(dataclasses.replace(row, temperature=0.0), SHIPPED)
    assert isinstance(greedy, Refusal) and greedy.field == "temperature" and greedy.same_subject
