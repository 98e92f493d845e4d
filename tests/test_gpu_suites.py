"""The suites for hub checkpoints: they load, bind to the real drafters, and are planned without a network."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from draftboard.measure import commands, estimate, opening
from draftboard.measure.arms import bound_options
from draftboard.measure.plan import Plan, plans
from draftboard.record.store import Store
from draftboard.record.suites import load_suite
from draftboard.show import cells
from tiny_folder import save_task, save_tiny_folder

ROOT = Path(__file__).parents[1]
METHODS = {
    "qwen3-8b": {"draft_model", "eagle3", "mtp", "dflash", "dspark", "ngram"},
    "qwen3-4b": {"draft_model", "eagle3", "dflash", "dspark", "ngram"},
    "llama-3.1-8b": {"draft_model", "eagle3", "dflash", "ngram"},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_suite_names_its_methods_and_says_that_it_was_not_run(name: str) -> None:
    suite = load_suite(name)
    assert {arm.drafter for arm in suite.arms} == METHODS[name] | {"none"}
    assert "not run here" in suite.title
    assert suite.tasks == ("chat", "code", "copy")
    assert suite.thinking is (False if "qwen3" in name else None)


@pytest.mark.parametrize("name", METHODS)
def test_every_option_binds_to_the_modules_build(name: str) -> None:
    suite = load_suite(name)
    for arm in suite.arms:
        module, options = bound_options(arm, suite.plugins)
        assert module.__name__ == f"draftboard_drafters.{arm.drafter}"
        assert arm.options.items() <= options.items()
        assert arm.k is None or options["num_speculative_tokens"] == arm.k


@pytest.mark.parametrize("name", METHODS)
def test_a_dry_run_needs_no_network(name: str, tmp_path: Path) -> None:
    suite, out = load_suite(name), io.StringIO()
    planned = commands.make_plans(name, {}, (), (), {}, ROOT, "auto", "draftboard run")
    cells.show(estimate.outlook(planned, Store(tmp_path)).cells, Console(file=out, width=120))
    shown = out.getvalue()
    assert f"{3 * len(suite.arms)} cells" in shown
    assert all(arm.drafter in shown for arm in suite.arms)


def planned(tmp_path: Path, thinking: bool | None) -> Plan:
    (plan,) = plans(dataclasses.replace(load_suite("smoke"), tasks=("small",)), str(tmp_path), "")
    target = str(tmp_path / "target")
    return dataclasses.replace(plan, target=target, dtype="float32", device="cpu", thinking=thinking)


def test_a_suites_thinking_flag_reaches_template_record_and_ids(tmp_path: Path) -> None:
    save_tiny_folder(tmp_path / "target")
    save_task(tmp_path)
    template = tmp_path / "target" / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if enable_thinking is false %}<hush>{% endif %}")
    kept, quiet = (
        opening.open_run(planned(tmp_path, flag), lambda event: None, {}, None) for flag in (None, False)
    )
    assert len(quiet.template.ids(["a"], [])) - len(kept.template.ids(["a"], [])) == len("<hush>")
    flags = [opening.run_record("r", opened).generation.thinking for opened in (kept, quiet)]
    assert flags == [None, False]
    assert kept.task.sha256 == quiet.task.sha256
    assert not {arm.id for arm in kept.arms} & {arm.id for arm in quiet.arms}
    assert planned(tmp_path, None).key != planned(tmp_path, False).key


def test_a_suite_hands_its_thinking_flag_on() -> None:
    assert {plan.thinking for plan in plans(load_suite("qwen3-8b"), ".", "")} == {False}
    assert {plan.thinking for plan in plans(load_suite("quick"), ".", "")} == {None}
