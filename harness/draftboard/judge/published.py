"""A row beside a published figure: the same setting, or the first thing in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftboard.judge.summary import Row
from draftboard.record.published import Published, Thinking

CHECKPOINT_OPTION = "checkpoint"
"""The option in which a drafter names its weights."""

IDENTITY = ("target", "drafter", "checkpoint", "task")
"""Fields that say what a figure is about; the others say how it was measured."""

_THINKING: dict[bool | None, Thinking] = {True: "on", False: "off", None: "target's default"}

Pair = tuple[str, object, object]
"""A field, its value there, its value here."""


@dataclass(frozen=True, slots=True)
class PublishedMatch:
    """A published figure and ours of the same setting.

    `unlike` are the differences that are left: they do not define the setting and may move the figure.
    """

    published: Published
    metric: str
    """Name of the metric that both count."""
    ours: float
    unlike: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no published figure may stand beside a row: the first `field` in which the nearest one differs."""

    field: str
    reason: str
    nearest: Published | None = None

    @property
    def same_subject(self) -> bool:
        """Whether there is a published figure of this target, checkpoint and task, measured otherwise."""
        return self.nearest is not None and self.field not in IDENTITY


def find(row: Row, published: Sequence[Published]) -> tuple[PublishedMatch, ...] | Refusal:
    """The published figures that were measured in this row's setting, else the refusal of the nearest one.

    Target, drafter, checkpoint, task with its turns, thinking, sampling, K and chain must agree, and for a
    figure that depends on time also engine, device and concurrency. What a source does not state agrees with
    nothing.
    """
    judged = [(one, _objection(row, one)) for one in published]
    agreed = [one for one, objection in judged if objection is None]
    if agreed:
        return tuple(_match(row, one) for one in agreed)
    refused = [
        (place, reason, one) for one, objection in judged if objection for place, reason in [objection]
    ]
    if not refused:
        return Refusal("target", "no figure is published")
    place, reason, nearest = max(refused, key=lambda refusal: refusal[0])
    return Refusal(_FIELDS[place], reason, nearest)


def _objection(row: Row, one: Published) -> tuple[int, str] | None:
    """The place in `_FIELDS` of the first disagreement and its words; None where there is none."""
    for pair in _setting(row, one):
        if pair[1] != pair[2]:
            return _FIELDS.index(pair[0]), _differs(pair)
    if one.qualifier is not None:
        return _FIELDS.index(
            "qualifier"
        ), f"the source says {one.qualifier!r}, which is no single measurement"
    if one.metric is None:
        return _FIELDS.index("metric"), f"no figure here is counted as there: {one.counted}"
    if getattr(row, one.metric) is None:
        return _FIELDS.index("value"), f"ours is unknown: {row.missing.get(one.metric, 'not measured')}"
    return None


def _setting(row: Row, one: Published) -> Iterator[Pair]:
    yield "target", one.target, row.target
    yield "drafter", one.drafter, row.drafter
    yield "checkpoint", one.checkpoint, row.options.get(CHECKPOINT_OPTION)
    yield "task", one.task, row.task
    yield "turns", one.turns, row.generation.turns
    yield "thinking", one.thinking, _THINKING[row.generation.thinking]
    yield "temperature", one.temperature, row.temperature
    yield "top-k", None, row.sampling.top_k
    yield "top-p", None, row.sampling.top_p
    yield "K", one.k, row.k
    yield "mode", one.mode, "chain"
    if one.metric is not None and not one.metric.startswith(_COUNTS):
        yield "engine", one.engine, row.engine
        yield "device", one.device, row.device
        yield "concurrency", one.batch, row.concurrency


_FIELDS = (
    *("target", "drafter", "checkpoint", "task", "turns", "thinking", "temperature", "top-k", "top-p"),
    *("K", "mode", "engine", "device", "concurrency", "qualifier", "metric", "value"),
)
"""All fields in the order in which they are compared."""


_COUNTS = ("acceptance_", "proposal_")
"""Beginnings of the metrics that count tokens and rounds; the others depend on time."""


def _match(row: Row, one: Published) -> PublishedMatch:
    assert one.metric is not None
    rest = (
        ("reply limit", one.max_new_tokens, row.generation.max_new_tokens),
        ("dtype", one.dtype, row.dtype),
        ("engine", one.engine, row.engine),
    )
    unlike = tuple(_differs(pair) for pair in rest if pair[1] != pair[2])
    return PublishedMatch(one, one.metric, getattr(row, one.metric), unlike)


def _differs(pair: Pair) -> str:
    name, there, here = pair
    return f"{name} is {_words(there)} there and {_words(here)} here"


def _words(value: object) -> str:
    if value is None:
        return "not stated"
    return f"{value:g}" if isinstance(value, float) else str(value)
