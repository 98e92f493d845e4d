"""How long the site takes to build, and how large its front page is, for many arms.

    python harness/bench/site_size.py [--arms 500]

Clones the committed runs under other names until there are so many arms, builds the site, adds one run,
builds it again, and prints three figures beside what is wanted of them. The exit code is 1 where one is
missed. On a machine with other work, the processor's seconds in brackets say what the wall clock hides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from draftboard.record.records import Arm, RunRecord
from draftboard.record.store import Store, load
from draftboard.show import site

ROOT = Path(__file__).resolve().parents[2]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLD_S, AGAIN_S, FRONT_BYTES = 60.0, 5.0, 2_000_000


def clones() -> Iterator[tuple[RunRecord, list[Arm]]]:
    """The committed runs again and again: each time another machine with other arms."""
    genuine = [load(stored.path) for stored in Store(ROOT / "results").runs()]
    if not genuine:
        sys.exit("there are no committed runs to clone")
    for number in count():
        for run, arms in genuine:
            moment = (BEGIN + timedelta(days=number)).isoformat()
            own = [replace(arm, id=f"{arm.id}x{number}", baseline=f"{arm.baseline}x{number}") for arm in arms]
            yield (
                replace(
                    run,
                    id=f"{run.id}-{number}",
                    created_utc=moment,
                    fingerprint=f"{number:012}",
                    testbed=f"machine-{number}",
                    baseline=f"{run.baseline}x{number}",
                    arms=tuple(arm.id for arm in own),
                ),
                own,
            )


def seconds(store: Store, out: Path) -> tuple[float, float]:
    """Time of one build by the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    site.build(store, out, ROOT)
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> int:
    """Prints the figures; 1 where one is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--arms", type=int, default=500, help="arm records in the store (default: %(default)s)"
    )
    wanted = parser.parse_args().arms
    with tempfile.TemporaryDirectory() as folder:
        store, out, source, arms = Store(Path(folder) / "results"), Path(folder) / "out", clones(), 0
        while arms < wanted:
            run, own = next(source)
            store.write_run(run, own)
            arms += len(own)
        cold = seconds(store, out)
        store.write_run(*next(source))
        again, front = seconds(store, out), (out / "index.html").stat().st_size
    figures = (
        ("cold build", cold[0], COLD_S, f"s ({cold[1]:.1f})"),
        ("build after one new run", again[0], AGAIN_S, f"s ({again[1]:.1f})"),
        ("front page", front / 1e6, FRONT_BYTES / 1e6, "MB"),
    )
    print(f"{arms} arms")
    for name, value, limit, unit in figures:
        print(f"{name:<24} {value:8.2f} {unit:<10} wanted: below {limit:g}")
    return int(any(value >= limit for _, value, limit, _ in figures))


if __name__ == "__main__":
    raise SystemExit(main())
