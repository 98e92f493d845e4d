"""The worker process: one run, from loading the target to the journal's last entry."""

from __future__ import annotations

import gc
import signal
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from draftboard.errors import UserError
from draftboard.measure.arms import describe
from draftboard.measure.closing import close, is_closed
from draftboard.measure.events import Finished, Note, Ready, Refused
from draftboard.measure.machine import BusyMeter
from draftboard.measure.opening import Opened, open_run, run_record
from draftboard.measure.plan import Plan
from draftboard.measure.session import Session
from draftboard.measure.telemetry_pass import sample_arms
from draftboard.record.codec import from_json
from draftboard.record.journal import Journal
from draftboard.record.records import RunRecord


def work(
    plan: Plan,
    run_id: str,
    journal_path: Path,
    errors: Mapping[int, str],
    pipe: tuple[Connection, Connection],
) -> None:
    """Measures what the journal lacks and tells the parent. `errors`: arms that already failed, by index;
    `pipe`: the end that the parent reads and the one to write to."""
    reader, parent = pipe
    reader.close()  # a copy, which would keep the pipe whole when the parent is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and decides
    try:
        _work(plan, run_id, Journal(journal_path), errors, parent)
    except UserError as error:
        parent.send(Refused(str(error)))
    except BrokenPipeError:
        return  # the parent is gone, and so is whoever asked
    except Exception as error:
        traceback.print_exc()
        parent.send(Refused(f"task {plan.task!r} on {plan.target!r}: {describe(error)}"))
    finally:
        gc.freeze()  # else the end of the process takes seconds, for which the parent waits


def _work(plan: Plan, run_id: str, journal: Journal, errors: Mapping[int, str], parent: Connection) -> None:
    before = run_in(journal)
    opened = open_run(plan, parent.send, errors, before)
    run = before or run_record(run_id, opened)
    if before is None:
        arms = [arm.record(run.id, run.baseline) for arm in opened.arms]
        journal.append("run", {"plan": plan.key, "record": run, "arms": arms})
    else:
        _refuse_another(before, run_record(run_id, opened))
    session = Session(opened, journal, parent.send)
    parent.send(_ready(run, opened, session))
    if not is_closed(journal):
        _measure(session)
    sample_arms(session)
    parent.send(Finished())


def _measure(session: Session) -> None:
    busy = BusyMeter()
    try:
        session.measure()
    finally:
        session.journal.append("disturbed", list(busy.reasons()))
    session.send(Note("comparing replies, timing the verification"))
    close(session)


def run_in(journal: Journal) -> RunRecord | None:
    """The run a journal belongs to, None for a new journal."""
    for entry in journal.read():
        if entry.kind == "run":
            return from_json(RunRecord, entry.data["record"], str(journal.path))
    return None


def _refuse_another(before: RunRecord, now: RunRecord) -> None:
    """A run is continued only where it would be the same run again."""
    if before.fingerprint != now.fingerprint:
        change = f"was begun on other hardware or software ({before.testbed}; here {now.testbed})"
    elif before.arms != now.arms:
        change = "had other arms: a prompt file, a checkpoint or an option's default has changed since"
    else:
        return
    raise UserError(f"run {before.id} {change}; start anew without --resume")


def _ready(run: RunRecord, opened: Opened, session: Session) -> Ready:
    labels = tuple(arm.label for arm in opened.arms)
    errors = {index: arm.error for index, arm in enumerate(opened.arms) if arm.error is not None}
    baseline = opened.arms.index(opened.baseline)
    return Ready(run, labels, baseline, errors, session.missing)
