"""The end of a run, after all timing: losslessness, the cost of verifying, the text of rejected guesses."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from draftboard.measure.arms import LiveArm
from draftboard.measure.comparison import compare
from draftboard.measure.curve import verify_curve
from draftboard.measure.opening import Opened
from draftboard.measure.session import Session
from draftboard.record.journal import Journal
from draftboard.record.records import Trace


def close(session: Session) -> None:
    """Writes the last entry of the journal: facts about the finished replies."""
    opened = session.opened
    measured = opened.target.reference()  # before checks that capture forwards of their own
    graphs = {arm.id: arm.graphs for arm in opened.arms}
    traces = {arm.id: _traces(session, arm) for arm in opened.arms}
    curve = _curve(opened, traces.values())
    findings = compare(opened, traces, session.send)
    session.journal.append(
        "closed",
        {
            "losslessness": {id: finding.facts for id, finding in findings.items()},
            "shortfalls": {id: list(finding.shortfalls) for id, finding in findings.items()},
            "guess_pieces": {id: _guess_pieces(opened, own) for id, own in traces.items()},
            "target": measured,
            "graphs": graphs,
            "verify_ms": {str(rows): ms for rows, ms in curve.items()},
        },
    )


def is_closed(journal: Journal) -> bool:
    """Whether the run in a journal is finished but for its telemetry."""
    return any(entry.kind == "closed" for entry in journal.read())


def _curve(opened: Opened, traces: Iterable[Sequence[Trace]]) -> dict[int, float]:
    """T_verify(m) by m, where the plan asks for it."""
    repeats = opened.plan.verify_repeats
    return verify_curve(opened.target, _middle(traces), repeats=repeats) if repeats else {}


def _traces(session: Session, arm: LiveArm) -> list[Trace]:
    return [trace for place, trace in session.done.items() if place[0] == arm.id]


def _middle(traces: Iterable[Sequence[Trace]]) -> int:
    """The median context length of all replies, halfway through each."""
    lengths = (len(trace.prompt_ids) + len(trace.token_ids) // 2 for own in traces for trace in own)
    return int(statistics.median(lengths))


def _guess_pieces(opened: Opened, traces: Iterable[Trace]) -> dict[str, str]:
    """Text of every guess that was rejected, by id."""
    rounds = (one for trace in traces if trace.rounds is not None for one in trace.rounds)
    missed = sorted({token for one in rounds for token in one.draft_ids[one.accepted :]})
    return {str(token): opened.template.piece(token) for token in missed}
