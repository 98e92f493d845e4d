"""What a worker process tells its parent, in the order it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from draftboard.record.records import RunRecord, Trace


@dataclass(frozen=True, slots=True)
class Ready:
    """The target is loaded and the arms are built; `labels` by arm, `errors` of those that failed."""

    run: RunRecord
    labels: tuple[str, ...]
    baseline: int
    errors: dict[int, str]
    replies: int
    """Replies still to come."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An arm, by its index, is about to compute; a worker that dies now died in it."""

    arm: int


@dataclass(frozen=True, slots=True)
class Replied:
    """One counted reply is on disk."""

    arm: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class Failed:
    """An arm takes no further part."""

    arm: int
    error: str


@dataclass(frozen=True, slots=True)
class Note:
    """A step that takes a while."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A user's mistake stopped the run; no reply was lost."""

    error: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything is on disk."""


Event = Ready | Begun | Replied | Failed | Note | Refused | Finished
Send = Callable[[Event], None]


class Watcher(Protocol):
    """Somebody who follows a run, such as a progress bar."""

    def __call__(self, event: Event) -> None: ...
