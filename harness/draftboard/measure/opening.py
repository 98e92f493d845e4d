"""The start of a run in its worker process: target, prompts, arms, and the record that names them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from draftboard.errors import UserError
from draftboard.measure import loading
from draftboard.measure.arms import LiveArm, build_arm, left_out
from draftboard.measure.compiled import kernels
from draftboard.measure.events import Begun, Failed, Note, Send
from draftboard.measure.machine import environment
from draftboard.measure.memory import MemoryMeter
from draftboard.measure.plan import Plan
from draftboard.measure.prompts import Template
from draftboard.measure.room import left_out_words, read_room
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.source_model import import_code
from draftboard.measure.target import TargetModel
from draftboard.record.environment import fingerprint, testbed
from draftboard.record.records import SCHEMA, Generation, Memory, RunRecord, TaskRef
from draftboard.record.tasks import Prompt, Task


@dataclass(slots=True)
class Opened:
    """Everything a run computes with."""

    plan: Plan
    task: Task
    prompts: tuple[Prompt, ...]
    template: Template
    target: TargetModel
    sampler: Sampler
    arms: list[LiveArm]
    left_out: dict[str, int]
    """Prompts that may need more positions than the plan allows, with what they may need."""
    memory: MemoryMeter
    loaded: Memory | None
    """The memory that loading the target took."""

    @property
    def baseline(self) -> LiveArm:
        """The one arm that proposes nothing."""
        return next(arm for arm in self.arms if arm.spec.drafter == self.plan.baseline)


def open_run(plan: Plan, send: Send, errors: Mapping[int, str], before: RunRecord | None) -> Opened:
    """Loads and builds what `plan` names. `errors` are the arms, by index, that already failed; `before` is
    the record of the run that is being continued."""
    task, template, room = read_room(plan, loading.resolve_source(plan.target))
    if room.left_out:
        send(Note(left_out_words(room, plan.max_context)))
    import_code(loading.resolve_source(plan.target), plan.revision)
    if loading.resolve_device(plan.device).type == "cpu":
        kernels()  # code that is imported and compiled once is no part of what a target takes
    memory = MemoryMeter(loading.resolve_device(plan.device))
    memory.begin()
    target = _target(plan, room.positions)
    loaded = memory.read()
    sampler = Sampler(plan.sampling, Randomness(plan.sampling.seed, target.device))
    common = _common(plan, task, target)
    arms = []
    for index, spec in enumerate(plan.arms):
        if index in errors:
            arms.append(
                left_out(spec, plan.plugins, errors[index], common, before.arms[index] if before else None)
            )
        else:
            send(Begun(index))
            arms.append(build_arm(spec, plan.plugins, target, sampler, common))
            if arms[-1].starved:
                send(Failed(index, str(arms[-1].error)))
                raise SystemExit("memory ran out; the next worker process goes on without this arm")
    _refuse_twins(arms)
    return Opened(
        plan, task, room.prompts, template, target, sampler, arms, dict(room.left_out), memory, loaded
    )


def run_record(run_id: str, opened: Opened) -> RunRecord:
    """The record of a run that begins now."""
    plan, task, dtype = opened.plan, opened.task, loading.dtype_name(opened.target.dtype)
    here = environment(opened.target.device)
    return RunRecord(
        schema=SCHEMA,
        id=run_id,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        engine="torch",
        concurrency=1,
        target=opened.target.reference(),
        dtype=dtype,
        task=TaskRef(task.name, task.title, task.version, task.sha256, task.licence, len(opened.prompts)),
        sampling=plan.sampling,
        generation=_generation(opened),
        suite=plan.suite,
        indicative=plan.indicative,
        repeats=plan.repeats,
        warmup_replies=plan.warmup,
        prompt_ids=tuple(prompt.id for prompt in opened.prompts),
        left_out=opened.left_out,
        loading=opened.loaded,
        loading_missing=opened.memory.missing,
        command=plan.command,
        environment=here,
        fingerprint=fingerprint(here, dtype),
        testbed=testbed(here, dtype),
        baseline=opened.baseline.id,
        arms=tuple(arm.id for arm in opened.arms),
    )


def _target(plan: Plan, max_context: int) -> TargetModel:
    device = loading.resolve_device(plan.device)
    return loading.load_target(
        plan.target,
        dtype=loading.resolve_dtype(plan.dtype, device),
        device=device,
        revision=plan.revision,
        max_context=max_context,
    )


def _common(plan: Plan, task: Task, target: TargetModel) -> list[object]:
    """What all arms of a run share of the facts that decide a result."""
    dtype, asked = loading.dtype_name(target.dtype), [plan.max_new_tokens, task.thinking]
    return ["torch", target.id, target.revision, task.sha256, dtype, plan.sampling, *asked]


def _generation(opened: Opened) -> Generation:
    return Generation(
        max_new_tokens=opened.plan.max_new_tokens,
        turns=max(len(prompt.turns) for prompt in opened.prompts),
        template=opened.task.template,
        system_prompt=opened.task.system_prompt,
        thinking=opened.task.thinking,
        stop_ids=tuple(sorted(opened.target.stop_ids)),
    )


def _refuse_twins(arms: Sequence[LiveArm]) -> None:
    ids = [arm.id for arm in arms]
    twins = [arm.label for arm in arms if ids.count(arm.id) > 1]
    if twins:
        raise UserError(f"arm {twins[0]} is listed twice with the same options; list it once")
