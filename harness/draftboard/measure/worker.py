"""The worker process: one run, from loading the target to the journal's last entry."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from draftboard.errors import UserError
from draftboard.measure.closing import close
from draftboard.measure.events import Finished, Note, Ready, Refused
from draftboard.measure.machine import BusyMeter
from draftboard.measure.opening import Opened, open_run, run_record
from draftboard.measure.plan import Plan
from draftboard.measure.session import Session
from draftboard.record.codec import from_json
from draftboard.record.journal import Journal
from draftboard.record.records import RunRecord


def work(plan: Plan, run_id: str, journal_path: Path, errors: Mapping[int, str], parent: Connection) -> None:
    """Measures what the journal lacks and tells `parent`. `errors`: arms that already failed, by index."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and decides
    try:
        _work(plan, run_id, Journal(journal_path), errors, parent)
    except UserError as error:
        parent.send(Refused(str(error)))


def _work(plan: Plan, run_id: str, journal: Journal, errors: Mapping[int, str], parent: Connection) -> None:
    before = run_in(journal)
    opened = open_run(plan, parent.send, errors, before)
    run = _same_machine(before, run_record(run_id, opened))
    if before is None:
        arms = [arm.record(run.id, run.baseline) for arm in opened.arms]
        journal.append("run", {"plan": plan.key, "record": run, "arms": arms})
    session = Session(opened, journal, parent.send)
    parent.send(_ready(run, opened, session))
    busy = BusyMeter()
    session.measure()
    parent.send(Note("comparing replies, timing the verification"))
    close(session, busy.reasons())
    parent.send(Finished())


def run_in(journal: Journal) -> RunRecord | None:
    """The run a journal belongs to, None for a new journal."""
    for entry in journal.read():
        if entry.kind == "run":
            return from_json(RunRecord, entry.data["record"], str(journal.path))
    return None


def _same_machine(before: RunRecord | None, now: RunRecord) -> RunRecord:
    if before is not None and before.fingerprint != now.fingerprint:
        raise UserError(
            f"run {before.id} was begun on other hardware or software ({before.testbed}; here {now.testbed});"
            " start anew without --resume"
        )
    return before or now


def _ready(run: RunRecord, opened: Opened, session: Session) -> Ready:
    labels = tuple(arm.label for arm in opened.arms)
    errors = {index: arm.error for index, arm in enumerate(opened.arms) if arm.error is not None}
    baseline = opened.arms.index(opened.baseline)
    return Ready(run, labels, baseline, errors, session.missing)
