"""How figures and rows read, the same in the terminal, in files and on the page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Literal

from draftboard.judge.estimates import Metric
from draftboard.judge.summary import Row
from draftboard.judge.worth import factor
from draftboard.record.records import Arm, TargetRef, Training
from draftboard.record.store import parse_utc

DASH = "–"

LEFT_OUT = "left out, longer than the caches may be"
"""Before the ids of the prompts that a run could not take."""

Tone = Literal["plain", "gain", "loss", "bad", "quiet"]

RANKS: dict[Tone, int] = {"gain": 3, "plain": 2, "quiet": 2, "loss": 1, "bad": 0}
"""What verdicts are sorted by."""

_MARKUP = re.compile(r"[\\`*_\[\]|~]")

_FORMATS = {
    "tokens/round": "{:.2f}",
    "tokens/s": "{:.1f}",
    "ms": "{:.2f}",
    "ms/round": "{:.2f}",
    "": "{:.1%}",
}


def figure(value: float | None, unit: str) -> str:
    """A figure in its unit's number of digits; a dash for an unknown one."""
    if value is None:
        return DASH
    return factor(value) if unit == "x" else _FORMATS[unit].format(value)


def with_unit(metric: Metric) -> str:
    """A metric's title, with its unit where the figure does not carry it."""
    return f"{metric.title}, {metric.unit}" if metric.unit.startswith("ms") else metric.title


def interval(lo: float | None, hi: float | None) -> str:
    """A 95 % interval of lengths or factors; empty when unknown."""
    return "" if lo is None or hi is None else f"{lo:.2f}{DASH}{hi:.2f}"


def speedup_tone(row: Row) -> Tone:
    """A loss is a loss however small; a gain is one when the whole interval says so."""
    if row.baseline or row.speedup is None:
        return "plain"
    if row.speedup < 1:
        return "loss"
    return "gain" if row.speedup_lo is not None and row.speedup_lo > 1 else "plain"


def speedup_words(row: Row) -> str:
    """The speedup; one below 1 says in so many words that it is a loss."""
    return figure(row.speedup, "x") + (" slower" if speedup_tone(row) == "loss" else "")


def lossless_words(row: Row) -> str:
    """The verdict; a dash for the baseline, which is what the others are compared with."""
    return DASH if row.baseline else row.lossless


def lossless_tone(row: Row) -> Tone:
    """`bug` stands out, `not checked` recedes."""
    tones: dict[str, Tone] = {"bug": "bad", "not checked": "quiet"}
    return tones.get(row.lossless, "plain")


def arm_name(row: Row) -> str:
    """The method and its K."""
    return row.card.label if row.k is None else f"{row.card.label} K={row.k}"


def names(rows: Sequence[Row]) -> dict[str, str]:
    """A name for each arm by its id: method and K, and where those do not tell two arms apart, what does:
    options, the module or the weights."""
    return {row.arm: arm_name(row) + _difference(row, rows) for row in rows}


def _difference(row: Row, rows: Sequence[Row]) -> str:
    alike = [_identity(other) for other in rows if arm_name(other) == arm_name(row)]
    differing = ((n, value) for n, value in _identity(row).items() if any(o.get(n) != value for o in alike))
    shown = ", ".join(f"{name}={value}" for name, value in differing)
    return f" ({shown})" if shown else ""


def _identity(row: Row) -> dict[str, object]:
    weights = DASH if row.weights_sha256 is None else row.weights_sha256[:8]
    return {"module": row.drafter, **row.options, "weights": weights}


def task_name(row: Row, rows: Sequence[Row]) -> str:
    """A row's task, and where other prompts go by the same name, which version of it."""
    return row.task + task_mark(row, rows)


def task_mark(row: Row, rows: Sequence[Row]) -> str:
    """What tells a row's task from others of its name; empty where nothing must."""
    alike = {other.task_sha256 for other in rows if other.task == row.task}
    return f" (version {row.task_version}, {row.task_sha256[:8]})" if len(alike) > 1 else ""


def day(row: Row) -> str:
    """The day of the run, in UTC."""
    return parse_utc(row.created_utc, row.run).date().isoformat()


def training(cost: Training | None) -> str:
    """What training cost here, as measured."""
    if cost is None:
        return "ours: trained here, cost not recorded"
    energy = "" if cost.energy_joules is None else f", {cost.energy_joules / 1000:,.0f} kJ"
    text = f"{cost.data_tokens / 1e6:.2f} M tokens of text, {cost.token_visits / 1e6:.2f} M visits"
    return (
        f"ours: {text}, {cost.seconds / 60:.0f} min "
        f"({cost.cpu_seconds / 60:.0f} min of processor) on {cost.cpu}{energy}"
    )


def graphs(of: Arm | TargetRef) -> str:
    """How many CUDA graphs there were, or why there were none."""
    return str(of.graphs or of.graphs_missing)


def visible(text: str) -> str:
    """Text with every character that would not show, or would steer a terminal, spelt out."""
    if text.isprintable():
        return text
    return "".join("⏎" if c == "\n" else c if c.isprintable() else repr(c)[1:-1] for c in text)


def markdown(text: str) -> str:
    """The text as Markdown shows it, in a line or in a cell of a table, whatever a name or an error holds."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(visible(text), quote=False))
