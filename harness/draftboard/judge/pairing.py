"""Which arm of one side is to be compared with which arm of the other, and which must not be.

Arms are matched by task, drafter and K. Two matched arms are compared only when every fact of `FIELDS`
agrees: a figure of other prompts, weights or settings is another figure, whatever the arms are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from draftboard.record.accepted import label_of
from draftboard.record.codec import to_json
from draftboard.record.records import Arm, Json, RunRecord

Run = tuple[RunRecord, Sequence[Arm]]
"""A run and its arms; a baseline that `RunRecord.arms` does not name is the others' yardstick and no more."""
Place = tuple[str, str, int | None]
"""Task, drafter and K."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm with the run it was measured in and that run's baseline."""

    run: RunRecord
    arm: Arm
    baseline: Arm
    is_namesake: bool = False
    """Another arm of its side has its task, drafter and K, so that a reader needs its id."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.run.task.name

    @property
    def label(self) -> str:
        """The drafter and its K, as the command line takes them."""
        return label_of(self.arm)

    @property
    def name(self) -> str:
        """The label for readers, with the arm's id where others share it."""
        return f"{self.label} ({self.arm.id[:8]})" if self.is_namesake else self.label

    @property
    def failed(self) -> bool:
        """Whether it, or the baseline that its speed is relative to, gave up."""
        return bool(self.arm.error or self.baseline.error)


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


SETTINGS: dict[str, Callable[[RunRecord], Json]] = {
    "engine": lambda run: [run.engine, run.concurrency],
    "target": lambda run: [run.target.id, run.target.revision],
    "dtype": lambda run: run.dtype,
    "task hash": lambda run: run.task.sha256,
    "sampling": lambda run: to_json(run.sampling),
    "reply limit and template": lambda run: to_json(run.generation),
}
"""What a whole run was measured with."""


def _of_run(read: Callable[[RunRecord], Json]) -> Callable[[Measured], Json]:
    return lambda one: read(one.run)


FIELDS: dict[str, Callable[[Measured], Json]] = {
    **{name: _of_run(read) for name, read in SETTINGS.items()},
    "weights": lambda m: m.arm.weights.sha256,
    "options": lambda m: m.arm.options,
}
MACHINE = "machine or library versions (fingerprint)"


def match(base: Iterable[Run], candidate: Iterable[Run], *, one_machine: bool = False) -> Matches:
    """Pairs the arms of two sides. Of several runs of the same thing the newest counts, so give them oldest
    first. Where several arms share a name, each goes to the one that differs least, and no arm is taken
    twice. `one_machine`: both sides were measured here and now, so that differing library versions are a
    part of what is compared and refuse nothing."""
    before, after = _by_place(base), _by_place(candidate)
    pairs: list[tuple[Measured, Measured]] = []
    refused, vanished, new = [], [], []
    for place in {**after, **before}:
        found, olds, news = _nearest(before.get(place, []), after.get(place, []), one_machine)
        vanished += olds
        new += news
        for old, own in found:
            if fields := _differing(old, own, one_machine):
                refused.append(Refused(old, own, fields))
            else:
                pairs.append((old, own))
    return Matches(tuple(pairs), tuple(refused), tuple(vanished), tuple(new))


def _nearest(
    olds: Sequence[Measured], news: Sequence[Measured], one_machine: bool
) -> tuple[list[tuple[Measured, Measured]], list[Measured], list[Measured]]:
    """The arms of one name in pairs, those that differ least first, and what is left of either side."""
    places = [(i, j) for i in reversed(range(len(olds))) for j in range(len(news))]
    places.sort(key=lambda place: len(_differing(olds[place[0]], news[place[1]], one_machine)))
    taken: dict[int, int] = {}
    for i, j in places:
        if j not in taken and i not in taken.values():
            taken[j] = i
    return (
        [(olds[taken[j]], news[j]) for j in sorted(taken)],
        [old for i, old in enumerate(olds) if i not in taken.values()],
        [own for j, own in enumerate(news) if j not in taken],
    )


def pooled(sessions: Sequence[Run], stride: int) -> Run:
    """Several runs of the same arms as one run with more repeats, those of a session counted from `stride`
    times its number, so that sides with other numbers of repeats agree on it. An error of any is the whole's;
    what a record says of its own replies is the first's."""
    run, first = sessions[0]
    arms = [replace(arm, traces=(), error=None) for arm in first]
    for number, (_, found) in enumerate(sessions):
        by_id = {arm.id: arm for arm in found}
        arms = [_with(arm, by_id.get(arm.id), number * stride) for arm in arms]
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
        baseline = next(arm for arm in arms if arm.id == run.baseline)
        for arm in (arm for arm in arms if arm.id in run.arms):
            one = Measured(run, arm, baseline)
            found.setdefault((one.task, arm.drafter, arm.k), {})[_facts(one)] = one
    return {
        place: [replace(one, is_namesake=len(by_facts) > 1) for one in by_facts.values()]
        for place, by_facts in found.items()
    }


def _facts(one: Measured) -> str:
    return json.dumps([*(read(one) for read in FIELDS.values()), one.run.fingerprint], sort_keys=True)


def _differing(base: Measured, candidate: Measured, one_machine: bool) -> tuple[str, ...]:
    fields = [name for name, read in FIELDS.items() if read(base) != read(candidate)]
    if not one_machine and base.run.fingerprint != candidate.run.fingerprint:
        fields.append(MACHINE)
    return tuple(fields)
