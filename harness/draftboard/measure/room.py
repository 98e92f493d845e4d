"""How many positions a run's caches hold, and which prompts fit into them.

A cache is made for the longest conversation of the run and not for the model's limit: most models allow far
more positions than any prompt here has, and memory for all of them would be wasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftboard.errors import UserError
from draftboard.measure import loading
from draftboard.measure.plan import Plan
from draftboard.measure.prompts import Template
from draftboard.record.tasks import Prompt, Task, load_task

_TEMPLATE_SLACK = 64
"""Positions a turn for what a template adds and for a reply that tokenises longer than it was."""


@dataclass(frozen=True, slots=True)
class Room:
    """The prompts that a run takes and the positions that its caches hold. `left_out` are the prompts that
    may need more than was allowed, with what they may need."""

    prompts: tuple[Prompt, ...]
    positions: int
    left_out: Mapping[str, int]


def read_room(plan: Plan, source: str) -> tuple[Task, Template, Room]:
    """The task as this run puts it, how it becomes ids, and the room that it takes, by the target's files at
    `source`, a folder or hub id."""
    # The task's hash stays: what the run overrides is in the arms' ids.
    task = load_task(plan.task, Path(plan.root))
    task = task if plan.thinking is None else replace(task, thinking=plan.thinking)
    limit = loading.position_limit(source, plan.revision)  # first: it tells of no target at all
    template = Template(loading.load_tokenizer(source, plan.revision), task)
    return task, template, make_room(plan, template, task.sample(plan.limit, plan.sampling.seed), limit)


def make_room(plan: Plan, template: Template, prompts: Sequence[Prompt], limit: int | None) -> Room:
    """Room for what fits into the plan's `max_context`; `limit` is the target's own, None where it has none.
    Raises UserError when `max_context` is beyond that limit or no prompt fits."""
    allowed = plan.max_context
    if allowed is not None and limit is not None and allowed > limit:
        raise UserError(f"--max-context {allowed} is more than the target's own limit of {limit}; lower it")
    needs = {prompt.id: _need(plan, template, prompt) for prompt in prompts}
    if allowed is None:
        return Room(tuple(prompts), max(needs.values()), {})
    fitting = tuple(prompt for prompt in prompts if needs[prompt.id] <= allowed)
    left_out = {id: need for id, need in needs.items() if need > allowed}
    if not fitting:
        raise UserError(
            f"no prompt of task {plan.task!r} fits --max-context {allowed}: the shortest may need"
            f" {min(needs.values())} positions; raise it, or lower --max-new-tokens"
        )
    return Room(fitting, max(needs[prompt.id] for prompt in fitting), left_out)


def left_out_words(room: Room, allowed: int | None) -> str:
    """One line about the prompts that do not fit."""
    names = ", ".join(room.left_out)
    return (
        f"left out, since they may need more than --max-context {allowed}: {names};"
        f" {max(room.left_out.values())} would hold all"
    )


def _need(plan: Plan, template: Template, prompt: Prompt) -> int:
    """Positions that a conversation can need. Guesses need none of their own: the loop asks for no more of
    them than the reply may still take."""
    ids = template.ids(prompt.turns, [""] * (len(prompt.turns) - 1))
    return len(ids) + len(prompt.turns) * (plan.max_new_tokens + _TEMPLATE_SLACK)
