"""A suite measured here and now, as often as somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from draftboard.errors import UserError, make_folder
from draftboard.measure import commands
from draftboard.measure.plan import Plan
from draftboard.record.sides import Run
from draftboard.record.store import Store, load
from draftboard.record.tasks import task_name


def plans_of(suite: str, root: Path, device: str, command: str) -> list[Plan]:
    """The plans of a suite as it stands."""
    return commands.make_plans(suite, {}, (), (), {}, root, device, command)


def task_names(plans: Sequence[Plan]) -> set[str]:
    """Names of the tasks that the plans ask for."""
    return {task_name(plan.task) for plan in plans}


def measured(plans: Sequence[Plan], results: Path, console: Console) -> Iterator[list[Run]]:
    """The runs of one more measurement, stored in `results`, for each that is taken from the iterator. A
    task whose run failed is missing among them, the only task too."""
    make_folder(results, "name another with --work")
    while True:
        store = Store(results)
        known = {run.record.id for run in store.runs()}
        try:
            commands.run_plans(plans, results, console, resume=False)
        except UserError as error:
            console.print(f"draftboard: {error}", markup=False, style="red")
        yield [load(run.path) for run in store.runs() if run.record.id not in known]
