"""Stores of synthetic runs for the tests of the site, and a reader of its pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from draftboard.record.history import Ruled, Said, append
from draftboard.record.records import Arm, Claim, TaskRef, Trace, Weights
from draftboard.record.store import Store
from record_factory import ENVIRONMENT, GUESSING, make_run, random_arms

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = (
    'a" onmouseover="x <b>&</script><script>alert(1)</script>\u202e \u05e9\u05dc\u05d5\u05dd ' + "w" * 200
)


def write(
    store: Store,
    seed: int,
    task: str,
    *,
    arms: list[Arm] | None = None,
    prompts: int = 8,
    mark: str = "",
    run: str = "run",
    **changes: Any,
) -> None:
    """A run of one task with a sound arm, a slow one and a failed one; ids differ by task and `mark`."""
    base, arm = random_arms(seed, prompts)
    slow = tuple(replace(t, decode_ms=t.decode_ms * 3, wall_ms=t.wall_ms * 3) for t in arm.traces)
    made = arms or [
        base,
        replace(arm, id="guess4"),
        replace(arm, id="guess8", k=8, traces=slow, weights=Weights(10, "ab", "random")),
        replace(arm, id="guess16", k=16, traces=(), error="out of <memory>", losslessness=None),
    ]
    baseline = f"{made[0].id}-{task}{mark}"
    made = [replace(a, id=f"{a.id}-{task}{mark}", baseline=baseline, run=f"{run}-{task}") for a in made]
    title, sha256 = changes.pop("title", f"The {task} task"), changes.pop("sha256", task * 8)
    about = TaskRef(task, title, 1, sha256, "Apache-2.0", prompts)
    store.write_run(make_run(made, id=f"{run}-{task}", task=about, **changes), made)


def write_methods(store: Store, tasks: tuple[str, ...] = ("chat", "code", "copy"), prompts: int = 20) -> None:
    """A run for each task: the baseline and six methods of rising order and falling speed, two Ks each."""
    for seed, task in enumerate(tasks):
        base, arm = random_arms(seed, prompts)
        arms = [base]
        for number in range(6):
            claim = Claim(f"{number} T tokens", "https://example.org", second_hand=number % 2 == 0)
            card = replace(GUESSING, label=f"Method {number}", order=10 * number + 10, training_cost=claim)
            weights = Weights(3_000_000 * number, f"{number:02}" * 32, "trained here" if number else None)
            for k in (4, 8):
                slower = 0.7 + 0.15 * number + 0.02 * k
                traces = tuple(
                    replace(t, decode_ms=t.decode_ms * slower + 1, wall_ms=t.wall_ms * slower + 1)
                    for t in arm.traces
                )
                own = {"id": f"m{number}k{k}", "drafter": f"method{number}", "card": card, "k": k}
                arms.append(replace(arm, traces=traces, weights=weights, **own))
        write(store, seed, task, arms=arms, prompts=prompts, verify_ms={"1": 8.0, "5": 11.0, "9": 14.0})


def write_series(store: Store, factors: Sequence[float], prompts: int = 4) -> None:
    """A run a month of the same arms; a factor lengthens all times of the drafting arm in its run."""
    base, arm = random_arms(1, prompts)
    for number, factor in enumerate(factors):
        where = replace(ENVIRONMENT, git_sha=f"{number:x}" * 40)
        slow = replace(arm, traces=tuple(_longer(trace, factor) for trace in arm.traces))
        when = f"2026-{number + 1:02}-01T00:00:00Z"
        more: dict[str, Any] = {"run": f"m{number}", "created_utc": when, "environment": where}
        write(store, 1, "chat", arms=[base, slow], prompts=prompts, **more)


def _longer(trace: Trace, factor: float) -> Trace:
    assert trace.rounds is not None
    spans = ("draft_ms", "verify_ms", "commit_ms")
    longer = {name: tuple(ms * factor for ms in getattr(trace.rounds, name)) for name in spans}
    decode, rest = trace.decode_ms * factor, trace.wall_ms - trace.decode_ms
    return replace(trace, rounds=replace(trace.rounds, **longer), decode_ms=decode, wall_ms=rest + decode)


def write_rulings(root: Path, lengths: Sequence[float], **changes: Any) -> None:
    """A ruling a day on plain decoding and one drafting arm of these acceptance lengths."""
    for number, length in enumerate(lengths):
        said = Said("gate", "guess-k4", "arm00001", length, length / 2, 30.0, 0.0, -0.01, 0.01, "tiny-target")
        plain = replace(said, arm="plain", arm_id="base0001", acceptance_length=1.0, speedup=1.0)
        made = Ruled(
            schema=1,
            created_utc=f"2026-03-{number + 1:02}T00:00:00+00:00",
            against="accepted",
            commit=f"{number:x}" * 40,
            dirty=False,
            suite="gate",
            fingerprint="f" * 12,
            testbed="tiny-cpu",
            outcome="pass",
            sessions=1,
            arms=(plain, said),
        )
        append(root, replace(made, **changes))


class Elements(HTMLParser):
    """All elements with their attributes; texts and values of those with a data-key."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.values: dict[str, float] = {}
        self.said: list[str] = []
        self._key: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.all.append((tag, given))
        if "data-key" in given:
            self._key = given["data-key"] or ""
            self.texts[self._key] = ""
            if re.fullmatch(r"[\d.e+-]+", given.get("data-value") or ""):
                self.values[self._key] = float(given["data-value"] or "")

    def handle_data(self, data: str) -> None:
        self.said.append(data)
        if self._key:
            self.texts[self._key] += data

    def handle_endtag(self, tag: str) -> None:
        self._key = None
