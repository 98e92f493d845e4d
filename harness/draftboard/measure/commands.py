"""What the commands that need torch do; the command line only parses and calls these."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from draftboard.errors import UserError, make_folder
from draftboard.measure import doctor, doctor_view, plugins, runner
from draftboard.measure.arms import check_arms
from draftboard.measure.contract import run_all, toy_target
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.plan import Plan, plans
from draftboard.measure.progress import Progress
from draftboard.record.store import Store
from draftboard.record.suites import Suite, load_suite


def make_plans(
    suite: str,
    changes: Mapping[str, Any],
    drafters: Sequence[str],
    ks: Sequence[int],
    options: Mapping[str, Any],
    root: Path,
    device: str,
    command: str,
) -> list[Plan]:
    """The plans of a suite after the flags, checked: every task, drafter and option exists."""
    chosen = _with_options(load_suite(suite).override(**changes).choose(drafters, ks), options)
    check_arms(chosen.arms, chosen.baseline, chosen.plugins)
    return plans(chosen, str(root), command, device)


def left_out(suite: str, chosen: Sequence[Plan], drafters: Sequence[str] = ()) -> str | None:
    """A sentence about arms of the suite that do not fit the target and are not measured; None where there is
    none, of those `drafters` that were asked for (all where none is named)."""
    target, kept = chosen[0].target, {arm.drafter for arm in chosen[0].arms}
    unfit = [arm.drafter for arm in load_suite(suite).arms if arm.target not in (None, target)]
    names = [name for name in unfit if name not in kept and (not drafters or name in drafters)]
    if not names:
        return None
    return f"left out, since their weights are for another target than {target}: {', '.join(names)}"


def _with_options(suite: Suite, options: Mapping[str, Any]) -> Suite:
    """Sets options on every arm but the baseline."""
    arms = tuple(
        arm if arm.drafter == suite.baseline else dataclasses.replace(arm, options={**arm.options, **options})
        for arm in suite.arms
    )
    return dataclasses.replace(suite, arms=arms)


def run_plans(chosen: Sequence[Plan], results: Path, console: Console, *, resume: bool) -> list[str]:
    """Runs plans one after the other; returns what failed. A plan that fails does not stop the others."""
    make_folder(results, "name another folder of results with --out")
    store, failures = Store(results), []
    _mention_interrupted(store, console, resume)
    if resume:
        chosen = _from_interruption(chosen, store, console)
    for plan in chosen:
        try:
            with Progress(console, Path(plan.task).stem) as watch:
                outcome = runner.run_plan(
                    plan, store, watch, resume=resume, start_method=runner.start_method()
                )
        except UserError as error:
            if len(chosen) == 1:
                raise
            failures.append(f"{plan.task}: {error}")
            console.print(f"draftboard: {failures[-1]}", markup=False, style="red")
            continue
        failures += [f"{plan.task}: {error}" for error in outcome.errors]
        console.print(f"wrote {outcome.folder}", markup=False, soft_wrap=True)
    return failures


def _from_interruption(chosen: Sequence[Plan], store: Store, console: Console) -> Sequence[Plan]:
    """The plans from the interrupted one on: those before it were finished, since plans run in order."""
    for index, plan in enumerate(chosen):
        if runner.interrupted(plan, store) is not None:
            return chosen[index:]
    console.print("nothing to resume: no interrupted run of this plan; starting anew")
    return chosen


def _mention_interrupted(store: Store, console: Console, resume: bool) -> None:
    left = [path for path in runner.interrupted_runs(store) if not runner.is_written(path)]
    if left and not resume:
        runs = "1 interrupted run lies" if len(left) == 1 else f"{len(left)} interrupted runs lie"
        console.print(f"{runs} in {left[0].parent}; --resume continues a matching one")


def print_doctor(target: str | None, dtype: str, device: str, context: int, console: Console) -> None:
    """The doctor's report, section by section."""
    doctor_view.show(doctor.examine(target or EMBEDDED_ID, dtype, device, context), console)


def check_drafter(module: str, options: Mapping[str, Any], package: str, console: Console) -> bool:
    """Prints every promise of the contract and whether the module keeps it; True when it keeps all."""
    kept = True
    for name, passed, message in run_all(plugins.load(module, package), toy_target(), options):
        kept = kept and passed
        console.print(f"{'kept  ' if passed else 'BROKEN'}  {name}  {message}", markup=False, soft_wrap=True)
    return kept
