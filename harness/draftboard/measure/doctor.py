"""What this machine can measure, what it cannot, and what to do about it.

The report is a run of sections, each made by a provider in `PROVIDERS`; a new kind of finding is a new
provider. One that breaks becomes a line that says so, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from draftboard.errors import UserError
from draftboard.measure.arms import describe
from draftboard.measure.loading import resolve_device, resolve_dtype

State = Literal["ok", "warning", "unknown"]


@dataclass(frozen=True, slots=True)
class Line:
    """One finding. `advice` says what to do about it, where something can be done."""

    name: str
    value: str
    state: State = "ok"
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Findings that belong together."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: a target on a device, in a dtype, after `context` cached positions.

    `suite` names the suite whose baseline runs through the loop.
    """

    target: str
    revision: str | None
    device: torch.device
    dtype: torch.dtype
    context: int
    suite: str = "quick"


Provider = Callable[[Subject], Iterator[Section]]


def providers() -> tuple[Provider, ...]:
    """Everything that is looked at, in the order of the report."""
    from draftboard.measure import doctor_load, doctor_machine

    return doctor_machine.sections, doctor_load.sections


def examine(
    target: str, dtype: str, device: str, context: int, revision: str | None = None
) -> Iterator[Section]:
    """The sections as they are found; in all some seconds. Raises UserError for what the user got wrong."""
    where = resolve_device(device)
    subject = Subject(target, revision, where, resolve_dtype(dtype, where), context)
    for provider in providers():
        yield from _guarded(provider, subject)


def _guarded(provider: Provider, subject: Subject) -> Iterator[Section]:
    try:
        yield from provider(subject)
    except UserError:
        raise
    except Exception as error:
        yield Section(
            "not examined", (Line(provider.__module__.rpartition(".")[2], describe(error), "warning"),)
        )
