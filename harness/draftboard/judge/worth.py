"""Does a drafter pay on this machine? One line, computed from the intervals of its speedups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftboard.judge.summary import Row

DEFINITION = (
    "pays: the whole 95 % interval of the decode speedup lies above 1; costs: it lies below 1; otherwise the "
    "difference is not clear. An arm that failed or whose output is wrong is not to be used, however fast."
)


@dataclass(frozen=True, slots=True)
class Worth:
    """A verdict on a method's rows, one per task: `tone` is what they have in common."""

    tone: Literal["gain", "loss", "plain", "bad"]
    text: str


def worth(rows: Sequence[Row]) -> Worth:
    """The verdict on one arm by its rows of one setting."""
    if rows[0].baseline:
        return Worth("plain", "the yardstick")
    for row in rows:
        if row.error or row.lossless == "bug":
            return Worth("bad", f"do not use ({row.task}): {row.error or row.lossless_reason}")
    gains = [row for row in rows if row.speedup_lo is not None and row.speedup_lo > 1]
    losses = [row for row in rows if row.speedup_hi is not None and row.speedup_hi < 1]
    rest = [row for row in rows if row not in gains and row not in losses]
    said = (("pays on ", gains), ("costs on ", losses), ("no clear difference on ", rest))
    text = "; ".join(verb + _tasks(found) for verb, found in said if found)
    doubt = _doubt(rows)
    if doubt:
        return Worth("plain", f"{doubt}: {text}")
    return Worth("gain" if gains and not losses else "loss" if losses and not gains else "plain", text)


def factor(value: float) -> str:
    """A speedup in two digits after the point, and in more where a loss would read as 1.

    >>> factor(1.254), factor(0.9961)
    ('1.25x', '0.996x')
    """
    digits = next(d for d in range(2, 20) if value >= 1 or d == 19 or round(value, d) < 1)
    return f"{value:.{digits}f}x"


def _tasks(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: row.task)
    return ", ".join(f"{row.task} {factor(row.speedup)}" if row.speedup else row.task for row in ordered)


def _doubt(rows: Sequence[Row]) -> str:
    if any(row.origin == "random" for row in rows):
        return "random weights, which say nothing about the method"
    if any(row.indicative for row in rows):
        return "indicative"
    return "" if all(row.valid for row in rows) else "not valid"


def fastest(rows: Sequence[Row]) -> Row | None:
    """Of the rows of one task, the one with the largest speedup among those that pay and may be used."""
    fit = [row for row in rows if not row.error and row.lossless != "bug" and row.origin != "random"]
    paying = [row for row in fit if row.speedup_lo is not None and row.speedup_lo > 1]
    return max(paying, key=lambda row: row.speedup or 0.0, default=None)


def standing(rows: Sequence[Row]) -> tuple[bool, int, float]:
    """For choosing among the Ks of a method: whole before failed, then more tasks, then the larger geometric
    mean of the decode speedups."""
    known = [row.speedup for row in rows if row.speedup]
    whole = not any(row.error or row.lossless == "bug" for row in rows)
    return whole, len(known), sum(map(math.log, known)) / len(known) if known else -math.inf
