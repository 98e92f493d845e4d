"""After all timing: every arm runs back to back for seconds under sampling, for utilisation and energy.

A round lasts milliseconds and the driver's gauges are means over up to a second, so the timed replies cannot
be sampled themselves; nor does a figure from here enter a speedup. Nothing that fails here fails the run.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from draftboard.measure.arms import describe
from draftboard.measure.events import Note
from draftboard.measure.machine import gpus_of
from draftboard.measure.session import Session
from draftboard.measure.telemetry.request import Request
from draftboard.measure.telemetry.sampler import NullSampler, Sampler, SamplerError, open_sampler
from draftboard.record.codec import from_json
from draftboard.record.journal import Journal
from draftboard.record.records import Arm, Json, RunRecord
from draftboard.record.telemetry import Telemetry, Window

T = TypeVar("T", Telemetry, Window)

LEAD_IN_S = 1.0
"""At most so long an arm runs before its window: the driver's means reach back by a second."""
LEAD_IN_SHARE = 0.1
IDLE_SHARE = 1 / 3
"""The window at rest is this share of an arm's."""

IDLE = "idle"
CUT_SHORT = "not sampled: the run ended before"
NOT_ASKED = "not sampled: the suite asks for no telemetry pass (telemetry_s = 0)"


def sample_arms(session: Session) -> None:
    """Samples the devices at rest and then under every living arm, each into the journal at once; what an
    interrupted pass has in there already is not taken again."""
    seconds, done = session.opened.plan.telemetry_s, _notes(session.journal)
    sampler = _open(session.opened.target.device, seconds)
    try:
        if IDLE not in done:
            _note(session, IDLE, lambda: _at_rest(sampler, seconds))
        for index, arm in enumerate(session.opened.arms):
            if arm.id not in done:
                _note(session, arm.id, partial(_sample, session, sampler, index))
    finally:
        sampler.close()


def is_due(journal: Journal) -> bool:
    """Whether the journal of a run lacks a part of its telemetry."""
    arms = (arm["id"] for entry in journal.read() if entry.kind == "run" for arm in entry.data["arms"])
    return not {IDLE, *arms} <= set(_notes(journal))


def with_telemetry(run: RunRecord, arms: Sequence[Arm], journal: Journal) -> tuple[RunRecord, list[Arm]]:
    """The records with what the journal holds for them, or the reason why it holds nothing."""
    notes = _notes(journal)
    cut_short = _cut_short(arms, set(notes))

    def found(kind: type[T], of: str) -> tuple[T | None, str | None]:
        data = notes.get(of, {"found": None, "missing": cut_short})
        return from_json(kind, data["found"], of) if data["found"] else None, data["missing"]

    idle, idle_missing = found(Window, IDLE)
    sampled = []
    for arm in arms:
        telemetry, missing = found(Telemetry, arm.id)
        sampled.append(replace(arm, telemetry=telemetry, telemetry_missing=missing))
    return replace(run, idle=idle, idle_missing=idle_missing), sampled


def _notes(journal: Journal) -> dict[str, Json]:
    return {entry.data["of"]: entry.data for entry in journal.read() if entry.kind == "telemetry"}


def _cut_short(arms: Sequence[Arm], noted: set[str]) -> str:
    """Why there are no notes of some: the first arm without one was running when the run ended."""
    last = next((arm for arm in arms if arm.id not in noted), None) if IDLE in noted else None
    if last is None:
        return CUT_SHORT
    k = "" if last.k is None else f" (K={last.k})"
    return f"not sampled: the run ended within the telemetry of {last.drafter}{k}"


def _open(device: torch.device, seconds: float) -> Sampler | NullSampler:
    if not seconds:
        return NullSampler(NOT_ASKED)
    try:
        return open_sampler(Request.of_window(seconds, os.getpid(), gpus_of(device)))
    except Exception as error:
        return NullSampler(f"error: {describe(error)}")


def _note(session: Session, of: str, read: Callable[[], Window | Telemetry]) -> None:
    """What `read` finds, or why it finds nothing, into the journal."""
    found, missing = None, None
    try:
        found = read()
    except SamplerError as error:
        missing = str(error)
    except Exception as error:
        missing = f"error: {describe(error)}"
    session.journal.append("telemetry", {"of": of, "found": found, "missing": missing})


def _at_rest(sampler: Sampler | NullSampler, seconds: float) -> Window:
    sampler.begin()
    time.sleep(_lead_in(seconds))
    sampler.begin()
    time.sleep(seconds * IDLE_SHARE)
    return sampler.end()


def _sample(session: Session, sampler: Sampler | NullSampler, index: int) -> Telemetry:
    """One arm's window. The first opening tells whether there is a sampler, before the arm runs at all."""
    arm, seconds = session.opened.arms[index], session.opened.plan.telemetry_s
    sampler.begin()
    if arm.error is not None:
        raise SamplerError("not sampled: the arm failed")
    session.send(Note(f"telemetry of {arm.label}, {seconds:g} s"))
    _back_to_back(session, index, _lead_in(seconds))
    device = session.opened.target.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    sampler.begin()
    replies, tokens = _back_to_back(session, index, seconds)
    window = sampler.end()
    return Telemetry(window, replies, tokens, sampler.software, *_torch_peaks(device))


def _back_to_back(session: Session, index: int, seconds: float) -> tuple[int, int]:
    """Replies without a pause for at least so long: how many, and their tokens."""
    end, replies, tokens = time.monotonic() + seconds, 0, 0
    for turn in itertools.cycle(session.turns()):
        reply = session.reply(session.opened.arms[index], turn, session.opened.plan.max_new_tokens)
        replies, tokens = replies + 1, tokens + len(reply.token_ids)
        if time.monotonic() >= end:
            break
    return replies, tokens


def _torch_peaks(device: torch.device) -> tuple[int | None, int | None]:
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def _lead_in(seconds: float) -> float:
    return min(LEAD_IN_S, LEAD_IN_SHARE * seconds)
