"""Which arm of one side is to be compared with which arm of the other, and which must not be.

Arms are matched by task, drafter and K. Two matched arms are compared only when every fact of `FIELDS`
agrees: a figure of other prompts, weights or settings is another figure, whatever the arms are called.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from draftboard.record.codec import to_json
from draftboard.record.records import Arm, Json, RunRecord

Run = tuple[RunRecord, Sequence[Arm]]
"""A run and its arms."""
Place = tuple[str, str, int | None, int]
"""Task, drafter, K, and a number that tells arms apart which share all three in one run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm with the run it was measured in and that run's baseline."""

    run: RunRecord
    arm: Arm
    baseline: Arm

    @property
    def task(self) -> str:
        """The task's name."""
        return self.run.task.name

    @property
    def label(self) -> str:
        """The drafter and its K, as the command line takes them."""
        return self.arm.drafter if self.arm.k is None else f"{self.arm.drafter}-k{self.arm.k}"


@dataclass(frozen=True, slots=True)
class Refused:
    """Two arms of one name that must not be compared; `fields` names each fact that differs."""

    base: Measured
    candidate: Measured
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """Every arm of both sides, in one place each. `vanished` were measured by the base only."""

    pairs: tuple[tuple[Measured, Measured], ...]
    refused: tuple[Refused, ...]
    vanished: tuple[Measured, ...]
    new: tuple[Measured, ...]


FIELDS: dict[str, Callable[[Measured], Json]] = {
    "engine": lambda m: [m.run.engine, m.run.concurrency],
    "target": lambda m: [m.run.target.id, m.run.target.revision],
    "dtype": lambda m: m.run.dtype,
    "task hash": lambda m: m.run.task.sha256,
    "sampling": lambda m: to_json(m.run.sampling),
    "reply limit and template": lambda m: to_json(m.run.generation),
    "weights": lambda m: m.arm.weights.sha256,
    "options": lambda m: m.arm.options,
}
MACHINE = "machine or library versions (fingerprint)"


def match(base: Iterable[Run], candidate: Iterable[Run], *, one_machine: bool = False) -> Matches:
    """Pairs the arms of two sides. Of several runs of the same thing the newest counts, so give them oldest
    first. `one_machine`: both sides were measured here and now, so that differing library versions are a
    part of what is compared and refuse nothing."""
    before, after = _by_place(base), _by_place(candidate)
    pairs, refused, used = [], [], set()
    for place, found in after.items():
        for own in found if place in before else []:
            nearest = min(reversed(before[place]), key=lambda m: len(_differing(m, own, one_machine)))
            used.add((place, id(nearest)))
            fields = _differing(nearest, own, one_machine)
            if fields:
                refused.append(Refused(nearest, own, fields))
            else:
                pairs.append((nearest, own))
    vanished = [m for place, found in before.items() for m in found if (place, id(m)) not in used]
    new = [m for place, found in after.items() if place not in before for m in found]
    return Matches(tuple(pairs), tuple(refused), tuple(vanished), tuple(new))


def pooled(sessions: Sequence[Run]) -> Run:
    """Several runs of the same arms as one run with more repeats. An error of any is the whole's."""
    run, first = sessions[0]
    arms = [replace(arm, traces=(), error=None) for arm in first]
    for number, (_, found) in enumerate(sessions):
        by_id = {arm.id: arm for arm in found}
        arms = [_with(arm, by_id.get(arm.id), number * run.repeats) for arm in arms]
    return replace(run, repeats=run.repeats * len(sessions)), arms


def _with(arm: Arm, more: Arm | None, offset: int) -> Arm:
    if more is None:
        return replace(arm, error=arm.error or "missing in one of the sessions")
    later = tuple(replace(trace, repeat=trace.repeat + offset) for trace in more.traces)
    return replace(arm, traces=(*arm.traces, *later), error=arm.error or more.error)


def _by_place(runs: Iterable[Run]) -> dict[Place, list[Measured]]:
    """At each place one arm for each set of facts, the newest."""
    found: dict[Place, dict[str, Measured]] = {}
    for run, arms in runs:
        for place, one in _places(run, arms):
            found.setdefault(place, {})[_facts(one)] = one
    return {place: list(by_facts.values()) for place, by_facts in found.items()}


def _places(run: RunRecord, arms: Sequence[Arm]) -> Iterator[tuple[Place, Measured]]:
    baseline = next(arm for arm in arms if arm.id == run.baseline)
    seen: Counter[tuple[str, int | None]] = Counter()
    for arm in sorted(arms, key=lambda arm: json.dumps(arm.options, sort_keys=True)):
        name = (arm.drafter, arm.k)
        yield (run.task.name, *name, seen[name]), Measured(run, arm, baseline)
        seen[name] += 1


def _facts(one: Measured) -> str:
    return json.dumps([*(read(one) for read in FIELDS.values()), one.run.fingerprint], sort_keys=True)


def _differing(base: Measured, candidate: Measured, one_machine: bool) -> tuple[str, ...]:
    fields = [name for name, read in FIELDS.items() if read(base) != read(candidate)]
    if not one_machine and base.run.fingerprint != candidate.run.fingerprint:
        fields.append(MACHINE)
    return tuple(fields)
