"""Does the gate cry wolf, and does it hear one? Many gates of a build against itself and against worse ones.

    python harness/bench/gate_trials.py all [--minutes 120] everything below that is missing, in this order
    python harness/bench/gate_trials.py null  [--runs 40]   a build against itself; half of the gates loaded
    python harness/bench/gate_trials.py slow  [--runs 20]   decoding longer by 8 %
    python harness/bench/gate_trials.py blind [--runs 20]   drafts cut to two tokens: E[L] falls by over 10 %
    python harness/bench/gate_trials.py creep [--runs 3]    3 %, 6 % and 9 % longer, all against one base
    python harness/bench/gate_trials.py table               only prints what was found so far

Each finished gate is one line of `gate_trials.jsonl` beside this file, on disk before the next begins, so an
experiment that was stopped or killed goes on where it stopped, with the commit it began with; `judge` is
the commit of this checkout, whose rules decided. `--out` names another file, `--keep` a folder for all runs.
After `--minutes` no new gate begins. A gate that cannot be held is a line too; two in a row end the script.
Leave the machine idle otherwise: the load of the null experiment is a process of this script that computes on
one core without a pause. One gate takes up to three sessions of the suite `gate`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gate_injections import blind, slow

from draftboard.errors import UserError
from draftboard.judge.findings import Limits, Outcome
from draftboard.judge.gate import Ruling, Trial
from draftboard.judge.times import ALL_ARMS
from draftboard.measure import versus
from draftboard.measure.builds import Build, at_commit, commit_of

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[[Build, Path], Build]
"""Makes a candidate of the base, in a folder."""

SLOWER, DRAFTED = 0.08, 2
CREEP = (0.03, 0.06, 0.09)
WANTED = {"null": 40, "slow": 20, "blind": 20, "creep": len(CREEP)}
"""Gates of each experiment, in the order of `all`."""
FAILED = "failed"
OUTCOMES: tuple[Outcome | str, ...] = (
    "regression", "pass", "cannot tell", "not lossless", "nothing comparable", FAILED,
)  # fmt: skip


def _same(base: Build, folder: Path) -> Build:
    return Build("candidate", base.root, base.python)


def _slowed(share: float) -> Make:
    return lambda base, folder: slow(base, share, folder)


EXPERIMENTS: dict[str, list[tuple[str, Make]]] = {
    "null": [("idle", _same), ("loaded", _same)],
    "slow": [(f"{SLOWER:.0%} longer", _slowed(SLOWER))],
    "blind": [(f"drafts cut to {DRAFTED}", lambda base, folder: blind(base, DRAFTED, folder))],
    "creep": [(f"{share:.0%} longer", _slowed(share)) for share in CREEP],
}
"""The conditions of each experiment, taken in turn."""


def main() -> None:
    """Runs what is missing, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all", "table"])
    parser.add_argument("--runs", type=int, help="gates of each experiment, shared by its conditions")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no gate after so long")
    parser.add_argument("--condition", help="only this one, for instance idle")
    parser.add_argument("--commit", help="the commit that is gated (default: as before, else HEAD)")
    parser.add_argument("--suite", default="gate")
    parser.add_argument("--keep", type=Path, help="folder for the runs of every gate (default: thrown away)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.experiment != "table":
            run_missing(given)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", flush=True)
    print(table(_lines(given.out)))


def run_missing(given: argparse.Namespace) -> None:
    """Holds the gates that are missing, one after the other, until all are there or the time is up."""
    ends = time.monotonic() + 60 * given.minutes
    base = _base(given)
    names = list(WANTED) if given.experiment == "all" else [given.experiment]
    failed = 0
    for name in names:
        for condition, make in _missing(name, given):
            if time.monotonic() >= ends:
                print(f"time is up before {name}, {condition}", flush=True)
                return
            line = _attempt(name, condition, make, base, given)
            _append(given.out, line)
            print(f"{name}, {condition}: {line['outcome']}, {line['seconds']:.0f} s", flush=True)
            failed = failed + 1 if line["outcome"] == FAILED else 0
            if failed == 2:
                raise SystemExit(f"two gates in a row could not be held: {line['because'][0]}")


def _missing(name: str, given: argparse.Namespace) -> Iterator[tuple[str, Make]]:
    """The gates of an experiment that are not in the file yet, its conditions taken in turn."""
    conditions = EXPERIMENTS[name]
    each = math.ceil((given.runs or WANTED[name]) / len(conditions))
    for number in range(each):
        for condition, make in conditions:
            held = [line for line in _lines(given.out, name) if line["condition"] == condition]
            if len(held) <= number and given.condition in (None, condition):
                yield condition, make


def _base(given: argparse.Namespace) -> Build:
    """The build that is gated. Gates of two commits are no one experiment."""
    begun = next((line["commit"] for line in _lines(given.out)), None)
    base = at_commit(given.commit or begun or "HEAD", ROOT)
    if begun not in (None, base.root.name):
        raise SystemExit(f"{given.out} holds gates of {begun}; name another --out for {base.root.name}")
    return base


@cache
def _judge() -> str:
    """The commit of this checkout as the first gate begins; what comes later is not imported any more."""
    return commit_of("HEAD", ROOT)[:12]


def _attempt(
    experiment: str, condition: str, make: Make, base: Build, given: argparse.Namespace
) -> dict[str, Any]:
    """One gate, or why it could not be held."""
    began, judge = time.perf_counter(), _judge()
    kept = given.keep and given.keep / f"{experiment}-{condition.replace(' ', '-')}-{time.time_ns()}"
    try:
        found = one_gate(make, base, given.suite, loaded=condition == "loaded", kept=kept)
    except UserError as error:
        found = {
            "outcome": FAILED,
            "sessions": 0,
            "pace": [None] * 3,
            "acceptance": {},
            "because": [str(error)],
        }
    named = {
        "experiment": experiment,
        "condition": condition,
        "commit": base.root.name,
        "judge": judge,
        "seconds": round(time.perf_counter() - began, 1),
    }
    return {**named, **found}


def one_gate(
    make: Make, base: Build, suite: str, *, loaded: bool, kept: Path | None = None
) -> dict[str, Any]:
    """One gate, from the builds to the ruling; its runs lie in `kept`, or nowhere. Raises UserError when a
    build does not run."""
    with tempfile.TemporaryDirectory() as folder, _load(loaded):
        candidate = make(base, Path(folder) / "candidate")
        trial = Trial(Limits(), one_machine=True)
        ruling = trial.over(versus.sessions(base, candidate, suite, kept or Path(folder) / "work"))
    return {"outcome": ruling.outcome, "sessions": ruling.sessions, **_figures(ruling)}


def _figures(ruling: Ruling) -> dict[str, Any]:
    pace = ruling.comparison.pace
    lengths = {
        arm.candidate.label: arm["acceptance_length"].change.log
        for arm in ruling.comparison.arms
        if arm.candidate.arm.id != arm.candidate.run.baseline
    }
    telling = [
        f"{f.arm or ALL_ARMS} {f.check}" for f in ruling.findings if f.outcome == ruling.outcome != "pass"
    ]
    machines = sorted({arm.candidate.run.fingerprint for arm in ruling.comparison.arms})
    return {
        "pace": [pace.log, pace.lo, pace.hi],
        "acceptance": lengths,
        "because": telling,
        "fingerprint": " ".join(machines) or None,
    }


@contextmanager
def _load(on: bool) -> Iterator[None]:
    """Keeps a core busy with another process's work."""
    if not on:
        yield
        return
    worker = multiprocessing.Process(target=_burn, args=(os.getpid(),), daemon=True)
    worker.start()
    try:
        yield
    finally:
        worker.kill()
        worker.join()


def _burn(parent: int) -> None:
    """Ends with the process that started it, however that one ends. No product: those take every core."""
    numbers = np.random.default_rng(0).random(1 << 16)
    while os.getppid() == parent:
        numbers = np.sqrt(numbers + 1)


def _append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line and waits until it is on disk; what a killed writer left of a line is cut off."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path, experiment: str | None = None) -> list[dict[str, Any]]:
    """What was found so far; a last line without its end is none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in found if experiment in (None, line["experiment"])]


def table(lines: list[dict[str, Any]]) -> str:
    """How often each outcome came, by experiment and condition, and the spread of the measured change."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["experiment"], line["condition"]), []).append(line)
    heads = ("experiment", "condition", "gates", *OUTCOMES, "sessions", "time", "E[L]", "s a gate")
    head = f"| {' | '.join(heads)} |"
    return "\n".join(
        [head, "| --- " * len(heads) + "|", *(_row(*key, found) for key, found in groups.items())]
    )


def _row(experiment: str, condition: str, found: list[dict[str, Any]]) -> str:
    counts = [sum(one["outcome"] == word for one in found) for word in OUTCOMES]
    means = [_mean([one[name] for one in found]) for name in ("sessions", "seconds")]
    paces = _spread([one["pace"][0] for one in found])
    lengths = _spread([log for one in found for log in one["acceptance"].values()])
    cells = (experiment, condition, str(len(found)), *map(str, counts), means[0], paces, lengths, means[1])
    return f"| {' | '.join(cells)} |"


def _mean(values: list[float | None]) -> str:
    """Of the known ones: a ruling that was made anew on kept runs has no time of its own."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.1f}" if known else "unknown"


def _spread(logs: list[float | None]) -> str:
    """Mean, least and largest of some changes, in percent."""
    known = [np.expm1(log) for log in logs if log is not None]
    return f"{np.mean(known):+z.1%} ({min(known):+z.1%} to {max(known):+z.1%})" if known else "unknown"


if __name__ == "__main__":
    main()
