"""Does the gate cry wolf, and does it hear one? Many gates of a build against itself and against worse ones.

    python harness/bench/gate_trials.py null  [--runs 40]   a build against itself; every second run is loaded
    python harness/bench/gate_trials.py slow  [--runs 20]   decoding longer by 8 %
    python harness/bench/gate_trials.py blind [--runs 20]   fewer tokens accepted, about 10 %
    python harness/bench/gate_trials.py creep               3 %, 6 % and 9 % longer, all against one base
    python harness/bench/gate_trials.py table               only prints what was found so far

Each finished gate is one line of `gate_trials.jsonl` beside this file, so an interrupted experiment goes on
where it stopped; `--out` names another file. Leave the machine idle otherwise: the load of the null
experiment is processes of this script that multiply matrices on every core. One gate takes up to three
sessions of the suite `gate`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gate_injections import blind, slow

from draftboard.judge.findings import Limits, Outcome
from draftboard.judge.gate import ALL_ARMS, Ruling, Trial
from draftboard.measure import versus
from draftboard.measure.builds import Build, at_commit

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[[Build, Path], Build]
"""Makes a candidate of the base, in a folder."""

SLOWER, EVERY = 0.08, 9
CREEP = (0.03, 0.06, 0.09)
OUTCOMES: tuple[Outcome, ...] = ("regression", "pass", "cannot tell", "not lossless", "nothing comparable")


def _same(base: Build, folder: Path) -> Build:
    return Build("candidate", base.root, base.python)


def _slowed(share: float) -> Make:
    return lambda base, folder: slow(base, share, folder)


EXPERIMENTS: dict[str, list[tuple[str, Make]]] = {
    "null": [("idle", _same), ("loaded", _same)],
    "slow": [(f"{SLOWER:.0%} longer", _slowed(SLOWER))],
    "blind": [(f"every {EVERY}th round drafts nothing", lambda base, folder: blind(base, EVERY, folder))],
    "creep": [(f"{share:.0%} longer", _slowed(share)) for share in CREEP],
}
"""The conditions of each experiment, taken in turn."""


def main() -> None:
    """Runs what is missing, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "table"])
    parser.add_argument("--runs", type=int, help="gates in all (null 40, creep 3, else 20)")
    parser.add_argument("--commit", default="HEAD", help="the commit that is gated")
    parser.add_argument("--suite", default="gate")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    given = parser.parse_args()
    if given.experiment != "table":
        wanted = given.runs or {"null": 40, "creep": 3}.get(given.experiment, 20)
        base = at_commit(given.commit, ROOT)
        for number in range(len(_lines(given.out, given.experiment)), wanted):
            line = one_gate(given.experiment, number, base, given.suite)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
            print(
                f"{given.experiment} {number + 1}/{wanted}: {line['outcome']}, {line['seconds']:.0f} s",
                flush=True,
            )
    print(table(_lines(given.out)))


def one_gate(experiment: str, number: int, base: Build, suite: str) -> dict[str, Any]:
    """One gate, from the builds to the ruling."""
    conditions = EXPERIMENTS[experiment]
    condition, make = conditions[number % len(conditions)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, _load(condition == "loaded"):
        candidate = make(base, Path(folder) / "candidate")
        trial = Trial(Limits(), one_machine=True)
        ruling = trial.over(versus.sessions(base, candidate, suite, Path(folder) / "work"))
    return {
        "experiment": experiment,
        "condition": condition,
        "commit": base.root.name,
        "outcome": ruling.outcome,
        "sessions": ruling.sessions,
        "seconds": round(time.perf_counter() - began, 1),
        **_figures(ruling),
    }


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
    return {"pace": [pace.log, pace.lo, pace.hi], "acceptance": lengths, "because": telling}


@contextmanager
def _load(on: bool) -> Iterator[None]:
    """Keeps every core busy with another process's work."""
    count = os.cpu_count() or 1 if on else 0
    workers = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _burn() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    matrix = np.random.default_rng(0).random((256, 256))
    while True:
        matrix = np.tanh(matrix @ matrix.T)


def _lines(path: Path, experiment: str | None = None) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
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
    means = [f"{np.mean([one[name] for one in found]):.1f}" for name in ("sessions", "seconds")]
    paces = _spread([one["pace"][0] for one in found])
    lengths = _spread([log for one in found for log in one["acceptance"].values()])
    cells = (experiment, condition, str(len(found)), *map(str, counts), means[0], paces, lengths, means[1])
    return f"| {' | '.join(cells)} |"


def _spread(logs: list[float | None]) -> str:
    """Mean, least and largest of some changes, in percent."""
    known = [np.expm1(log) for log in logs if log is not None]
    return f"{np.mean(known):+.1%} ({min(known):+.1%} to {max(known):+.1%})" if known else "unknown"


if __name__ == "__main__":
    main()
