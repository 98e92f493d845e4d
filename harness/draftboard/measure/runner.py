"""The parent's side of a run: a worker process, its restarts, and the finished record.

A worker that dies is started again without the arm it died in; whatever it had measured stays in the
journal, so a run always ends with a row for every arm.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from draftboard.errors import UserError
from draftboard.measure.closing import is_closed
from draftboard.measure.events import Begun, Event, Failed, Finished, Note, Ready, Refused, Replied, Watcher
from draftboard.measure.memory import with_memory
from draftboard.measure.out_of_memory import death_words
from draftboard.measure.plan import Plan
from draftboard.measure.session import replies_in
from draftboard.measure.telemetry_pass import is_due, with_telemetry
from draftboard.measure.turns import ADDRESS
from draftboard.measure.worker import work
from draftboard.record.codec import from_json
from draftboard.record.journal import Journal
from draftboard.record.records import Arm, Json, Losslessness, RunRecord, TargetRef, Trace, Validity
from draftboard.record.store import Store


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its folder and the errors of the arms that failed."""

    folder: Path
    run: RunRecord
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Death:
    """A worker process ended without finishing; `arm` is what it was computing, by index."""

    arm: int | None
    how: str


def run_plan(
    plan: Plan, store: Store, watch: Watcher, *, resume: bool = False, start_method: str = "spawn"
) -> Outcome:
    """Measures a plan to its end and stores it. `resume` continues the newest interrupted run of the plan.

    `start_method` is multiprocessing's.

    Raises UserError when the run cannot start or its baseline fails; KeyboardInterrupt passes through. In
    both cases the journal keeps what was measured.
    """
    journal = (interrupted(plan, store) if resume else None) or store.journal(_new_id(plan))
    with _alone(journal):
        errors = _errors_in(journal)
        if is_closed(journal) and is_due(journal):  # interrupted within the telemetry
            _one_worker(plan, journal, errors, watch, start_method)
        while not is_closed(journal):
            death = _one_worker(plan, journal, errors, watch, start_method)
            if death is not None and not is_closed(journal):
                _take_out(plan, journal, errors, death, watch)
        run, arms = assemble(journal)
        folder = _stored(store, run) or store.write_run(run, arms)
        journal.path.unlink()
    return Outcome(folder, run, tuple(f"{arm.drafter}: {arm.error}" for arm in arms if arm.error is not None))


def start_method() -> str:
    """How a worker begins: spawned, it shares nothing with this process. Where another build waits for it, it
    is forked, and need not import again what takes seconds; never where CUDA may be used. This process must
    compute nothing before: a fork inherits OpenMP's locks and not its threads."""
    waited_for = ADDRESS in os.environ and sys.platform == "linux"
    return "fork" if waited_for and not torch.cuda.is_available() else "spawn"


def _stored(store: Store, run: RunRecord) -> Path | None:
    """The run's folder, when an earlier process was stopped between storing it and clearing its journal."""
    return next((stored.path for stored in store.runs() if stored.record.id == run.id), None)


def interrupted_runs(store: Store) -> list[Path]:
    """Journals of runs that were not finished, newest last."""
    return sorted((store.root / ".partial").glob("*.jsonl"))


def is_written(journal: Path) -> bool:
    """Whether a process is measuring into a journal at this moment."""
    lock = FileLock(_lock_of(journal), blocking=False)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock:
            return False
    except Timeout:
        return True


def _lock_of(journal: Path) -> str:
    return f"{journal}.lock"


def assemble(journal: Journal) -> tuple[RunRecord, list[Arm]]:
    """The finished run and its arms, from nothing but the journal's entries."""
    entries = journal.read()
    opened = next(entry.data for entry in entries if entry.kind == "run")
    closed = next(entry.data for entry in entries if entry.kind == "closed")
    errors = _errors_in(journal)
    disturbed = tuple(dict.fromkeys(r for entry in entries if entry.kind == "disturbed" for r in entry.data))
    replies = replies_in(journal)
    arms = []
    for index, data in enumerate(opened["arms"]):
        arm = from_json(Arm, data)
        traces = tuple(trace for place, trace in replies.items() if place[0] == arm.id)
        arms.append(_finished(arm, traces, errors.get(index), disturbed, closed))
    run = from_json(RunRecord, opened["record"])
    run = replace(run, target=from_json(TargetRef, closed["target"]), verify_ms=closed["verify_ms"])
    return with_telemetry(run, with_memory(arms, journal), journal)


def _finished(
    arm: Arm, traces: tuple[Trace, ...], error: str | None, disturbed: tuple[str, ...], closed: Json
) -> Arm:
    # A journal that an older version closed does not tell them.
    graphs, graphs_missing = closed.get("graphs", {}).get(arm.id, (arm.graphs, arm.graphs_missing))
    return replace(
        arm,
        traces=traces,
        graphs=graphs,
        graphs_missing=graphs_missing,
        guess_pieces=closed["guess_pieces"][arm.id],
        losslessness=from_json(Losslessness, closed["losslessness"][arm.id]),
        validity=Validity((*disturbed, *closed["shortfalls"][arm.id])),
        error=error,
    )


def _one_worker(
    plan: Plan, journal: Journal, errors: dict[int, str], watch: Watcher, start_method: str
) -> _Death | None:
    """One worker process to its end; None when it finished the run."""
    context: Any = multiprocessing.get_context(start_method)
    ours, theirs = pipe = context.Pipe(duplex=False)
    arguments = (plan, journal.path.stem, journal.path, dict(errors), pipe)
    process = context.Process(target=work, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        arm, finished = _follow(ours, errors, watch)
        process.join()
    except BaseException:
        process.kill()
        process.join()
        raise
    return None if finished else _Death(arm, death_words(process.exitcode))


def _follow(connection: Connection, errors: dict[int, str], watch: Watcher) -> tuple[int | None, bool]:
    """Passes a worker's events on until it ends: the arm it was in, and whether it finished."""
    arm: int | None = None
    while True:
        try:
            event: Event = connection.recv()
        except (EOFError, OSError):  # nothing more, or killed within a message
            return arm, False
        if isinstance(event, Refused):
            raise UserError(event.error)
        if isinstance(event, Finished):
            return arm, True
        if isinstance(event, Ready):
            errors.update(event.errors)
        if isinstance(event, Failed):
            errors[event.arm] = event.error
        if isinstance(event, (Begun, Replied, Note)):
            arm = event.arm if isinstance(event, Begun) else None
        watch(event)


def _take_out(plan: Plan, journal: Journal, errors: dict[int, str], death: _Death, watch: Watcher) -> None:
    """Notes the arm a worker died in, so that the next worker leaves it out."""
    if death.arm in errors:
        return  # it said so itself before it ended
    if death.arm is None or plan.arms[death.arm].drafter == plan.baseline:
        place = "outside of any arm" if death.arm is None else "in the baseline"
        raise UserError(
            f"the worker process {death.how} {place}; what it measured is kept in {journal.path}:"
            " run the same command with --resume"
        )
    error = f"the worker process {death.how} in this arm"
    errors[death.arm] = error
    Journal(journal.path).append("failed", {"index": death.arm, "error": error})
    watch(Failed(death.arm, error))


def _errors_in(journal: Journal) -> dict[int, str]:
    """Why arms, by index, take no further part: not built, or failed since."""
    errors: dict[int, str] = {}
    for entry in journal.read():
        if entry.kind == "run":
            errors |= {
                i: arm["error"] for i, arm in enumerate(entry.data["arms"]) if arm["error"] is not None
            }
        if entry.kind == "failed":
            errors[entry.data["index"]] = entry.data["error"]
    return errors


def interrupted(plan: Plan, store: Store) -> Journal | None:
    """The newest journal whose plan is this one."""
    for path in reversed(interrupted_runs(store)):
        journal = Journal(path)
        if any(entry.kind == "run" and entry.data["plan"] == plan.key for entry in journal.read()):
            return journal
    return None


def _new_id(plan: Plan) -> str:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{now}-{Path(plan.task).stem}-{plan.key[:6]}{secrets.token_hex(1)}"


@contextmanager
def _alone(journal: Journal) -> Iterator[None]:
    """Keeps every other process off a journal."""
    journal.path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_lock_of(journal.path), blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{journal.path} is being written by another process; wait for it or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)
