"""Arms of one run that share a name: each has its own base and floor in the accepted record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftboard.errors import UserError
from draftboard.judge.accepting import accept
from draftboard.judge.findings import Limits
from draftboard.judge.gate import Trial
from draftboard.judge.pairing import Run
from draftboard.record.accepted import FILE, Ledger, accepted_runs, read_ledger, write_ledger
from draftboard.record.store import Store
from test_accepted import NOW, good


def twins(run_id: str, *, weaker: int = 1) -> Run:
    """A run with two arms of one name; the second has other options and a lower acceptance length."""
    run, (plain, first) = good(id=run_id)
    second = replace(good(2, accepted=weaker)[1][1], id="arm00002", options={"n": 9})
    return replace(run, arms=(plain.id, first.id, second.id)), [plain, first, second]


def bases(ledger: Ledger) -> list[tuple[str, str]]:
    return sorted((one.arm_id, one.run) for one in ledger.accepted)


def test_which_of_them_is_meant_is_said_by_id() -> None:
    with pytest.raises(UserError, match="give one of their ids: arm00001, arm00002"):
        accept(Ledger(), [twins("first")], "guess-k4", "why", NOW)


def test_namesakes_have_a_base_and_a_floor_each(tmp_path: Path) -> None:
    ledger = Ledger()
    for arm in ("base0001", "arm00001", "arm00002"):
        ledger = accept(ledger, [twins("first")], arm, "both", NOW)
    assert bases(ledger) == [(arm, "first") for arm in ("arm00001", "arm00002", "base0001")]
    assert sorted(one.acceptance_length for one in ledger.floors) == pytest.approx([1.8, 3.4])
    write_ledger(tmp_path, ledger)
    assert set(read_ledger(tmp_path).floors) == set(ledger.floors)
    assert bases(read_ledger(tmp_path)) == bases(ledger)
    Store(tmp_path).write_run(*twins("first"))
    ((run, arms),) = accepted_runs(tmp_path, "f" * 12)
    assert [arm.id for arm in arms] == ["base0001", "arm00001", "arm00002"]
    limits = Limits(ledger=ledger)
    ruling = Trial(limits, one_machine=True).add([(run, arms)], [twins("again")])
    assert (ruling.outcome, sum(one.check == "floor" for one in ruling.findings)) == ("pass", 2)
    collapsed = Trial(limits, one_machine=True).add([(run, arms)], [twins("less", weaker=0)])
    assert [one.outcome for one in collapsed.findings if one.check == "floor"] == ["pass", "regression"]


def test_a_moved_base_leaves_its_namesakes_alone() -> None:
    ledger = accept(Ledger(), [twins("first")], "arm00001", "one", NOW)
    ledger = accept(ledger, [twins("first")], "arm00002", "two", NOW)
    moved = accept(ledger, [twins("first"), twins("later")], "arm00001", "newer", NOW)
    assert bases(moved) == [("arm00001", "later"), ("arm00002", "first")]


def test_retrained_namesakes_are_known_by_their_options() -> None:
    """Other weights make another arm id."""
    ledger = accept(Ledger(), [twins("first")], "arm00002", "two", NOW)
    run, (plain, first, second) = twins("later")
    anew = replace(run, arms=(plain.id, first.id, "arm00003")), [plain, first, replace(second, id="arm00003")]
    assert bases(accept(ledger, [anew], "arm00001", "one", NOW)) == [
        ("arm00001", "later"),
        ("arm00002", "first"),
    ]


def test_a_base_of_options_that_are_measured_no_more_gives_way() -> None:
    """Otherwise a changed default would leave a base behind that every later gate misses."""
    ledger = accept(Ledger(), [good(id="first", arm={"options": {"n": 3}})], "guess", "first", NOW)
    moved = accept(ledger, [good(id="later", arm={"options": {"n": 4}})], "guess", "other default", NOW)
    assert bases(moved) == [("arm00001", "later")] and len(moved.floors) == 1


OLD = """
[[accepted]]
target = "tiny-target"
task = "chat"
arm = "guess-k4"
fingerprint = "ffffffffffff"
arm_id = "arm00001"
run = "first"
accepted_utc = "2026-03-01T00:00:00+00:00"
because = "before options were kept"

[[floors]]
target = "tiny-target"
task = "chat"
arm = "guess-k4"
acceptance_length = 1.5
because = "by hand"
"""


def test_a_ledger_without_options_is_read_kept_and_moved_as_before(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(OLD)
    old = read_ledger(tmp_path)
    write_ledger(tmp_path, old)
    assert read_ledger(tmp_path) == old and "options =" not in (tmp_path / FILE).read_text()
    assert bases(accept(old, [good(id="later")], "guess", "newer", NOW)) == [("arm00001", "later")]
    beside = accept(old, [twins("later")], "arm00002", "its namesake", NOW)
    assert bases(beside) == [("arm00001", "first"), ("arm00002", "later")]
    assert sorted(one.acceptance_length for one in beside.floors) == pytest.approx([1.5, 1.8])
