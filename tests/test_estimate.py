"""What a run will take, judged by earlier runs: of this machine only, and of the same K where it can be."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from draftboard.measure import estimate
from draftboard.measure.machine import environment
from draftboard.measure.plan import Plan, plans
from draftboard.record.environment import fingerprint
from draftboard.record.store import Store
from draftboard.record.suites import ArmSpec, load_suite
from draftboard.show import cells
from record_factory import TARGET, make_run, random_arms

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def plan() -> Plan:
    suite = replace(load_suite("quick"), tasks=("chat",), dtype="float32")
    arms = (ArmSpec("none"), ArmSpec("ngram", k=4), ArmSpec("ngram", k=8))
    return replace(plans(suite, str(ROOT), "", device="cpu")[0], arms=arms, telemetry_s=0.0)


@pytest.fixture(scope="module")
def here() -> str:
    return fingerprint(environment(torch.device("cpu")), "float32")


def measured(store: Store, day: int, k: int, second_per_token: float, here: str, **changes) -> None:
    """A run of `ngram` whose every token took so long."""
    base, arm = (replace(one, id=f"{one.id}-{day}", run=f"run{day}") for one in random_arms(1, prompts=3))
    wall = [1e3 * second_per_token * len(trace.token_ids) for trace in arm.traces]
    traces = tuple(replace(trace, wall_ms=ms) for trace, ms in zip(arm.traces, wall, strict=True))
    arms = [replace(base, drafter="none"), replace(arm, drafter="ngram", k=k, traces=traces)]
    run = make_run(arms, id=f"run{day}", created_utc=f"2026-01-{day:02}T00:00:00Z", fingerprint=here)
    store.write_run(
        replace(run, **{"target": replace(TARGET, id="smollm2-135m-instruct-q4_1"), **changes}), arms
    )


def paces(plan: Plan, store: Store) -> list[float | None]:
    """Seconds a token at most of the two ngram arms."""
    found = estimate.outlook([plan], store).cells[1:]
    return [None if one.seconds is None else one.seconds / one.tokens_at_most for one in found]


def test_only_runs_of_this_machine_and_dtype_count(plan: Plan, here: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    measured(store, 1, 4, 0.25, "e" * 12)
    assert paces(plan, store) == [None, None]
    measured(store, 2, 4, 0.5, here)
    measured(store, 3, 4, 0.125, "e" * 12)
    assert paces(plan, store) == [pytest.approx(0.5)] * 2
    assert paces(replace(plan, dtype="bfloat16"), store) == [None, None]


def test_the_same_k_goes_before_a_newer_run_of_another(plan: Plan, here: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    measured(store, 1, 4, 0.5, here)
    measured(store, 2, 4, 0.25, here)
    measured(store, 3, 2, 0.125, here)
    assert paces(plan, store) == [pytest.approx(0.25), pytest.approx(0.125)]


def test_another_target_or_task_says_nothing(plan: Plan, here: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    measured(store, 1, 4, 0.5, here, target=TARGET)
    assert paces(plan, store) == [None, None]
    assert paces(replace(plan, target="tiny-target"), store) == [pytest.approx(0.5)] * 2
    assert paces(replace(plan, target="tiny-target", task="code"), store) == [None, None]


def test_the_telemetry_pass_takes_its_time_too(plan: Plan, here: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    measured(store, 1, 4, 0.5, here)
    plans_of_both = (replace(plan, telemetry_s=seconds) for seconds in (0, 15))
    without, with_it = (estimate.outlook([one], store).cells[1].seconds for one in plans_of_both)
    assert without is not None and with_it == pytest.approx(without + 15)


@pytest.mark.parametrize(
    "seconds, end",
    [
        ((None, None), "2 cells, time unknown; 2 of 2 cells have no earlier run to judge by"),
        ((90.0, None), "2 cells, about 1.5 min of replies; 1 of 2 cells have no earlier run to judge by"),
        ((90.0, 30.0), "2 cells, about 2.0 min of replies"),
    ],
)
def test_time_that_no_earlier_run_tells_is_unknown_and_not_nothing(
    seconds: tuple[float | None, ...], end: str
) -> None:
    found = [
        SimpleNamespace(task="t", arm="a", prompts=1, replies=1, tokens_at_most=1, seconds=s) for s in seconds
    ]
    written = io.StringIO()
    cells.show(found, Console(file=written, width=120))
    assert written.getvalue().splitlines()[-1].strip() == end
