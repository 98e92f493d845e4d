"""Which rows may share a table: the setting they were measured in, as a key and as a heading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from draftboard.judge.summary import Row
from draftboard.record.ids import digest
from draftboard.record.records import Generation, Sampling

Setting = tuple[Hashable, ...]


def setting(row: Row) -> Setting:
    """What two rows must share to stand in one table. Their tasks may differ: each has a place of its own."""
    reply = row.generation
    where = (row.target, row.revision, row.dtype, row.fingerprint, row.engine, row.concurrency)
    return (*where, row.sampling, reply.max_new_tokens, reply.thinking, reply.template)


def key(row: Row) -> str:
    """A stable short name of a row's table."""
    return digest([setting(row), row.indicative])


def heading(row: Row) -> str:
    """A row's setting in words."""
    revision = f"@{row.revision[:12]}" if row.revision else ""
    streams = "" if row.concurrency == 1 else f"{row.concurrency} at once"
    parts = (
        f"{row.target}{revision} in {row.dtype} on {row.device}",
        row.engine,
        *_sampling(row.sampling),
        *_replies(row.generation),
        streams,
    )
    return ", ".join(part for part in parts if part)


def _sampling(sampling: Sampling) -> tuple[str, ...]:
    return (
        "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}",
        "" if sampling.top_k is None else f"top-k {sampling.top_k}",
        "" if sampling.top_p is None else f"top-p {sampling.top_p:g}",
        "" if sampling.seed == 0 else f"seed {sampling.seed}",
    )


def _replies(generation: Generation) -> tuple[str, ...]:
    thinking = {None: "", True: "thinking on", False: "thinking off"}[generation.thinking]
    bare = "" if generation.template == "target" else f"{generation.template} prompts"
    return f"replies of at most {generation.max_new_tokens} tokens", thinking, bare


def grouped(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The rows that may share a table, under their heading: figures to quote first, then tables without a
    valid row, then indicative ones, which are stamped and never share a table with the others."""
    groups: dict[tuple[bool, Setting], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.indicative, setting(row)), []).append(row)
    titles = {key: heading(found[0]) + (", indicative" if key[0] else "") for key, found in groups.items()}
    times = Counter(titles.values())

    def place(key: tuple[bool, Setting]) -> tuple[bool, bool, str, str]:
        found = groups[key]
        return key[0], not any(row.valid for row in found), titles[key], found[0].fingerprint

    def title(key: tuple[bool, Setting]) -> str:
        machine = f", machine {groups[key][0].fingerprint[:8]}" if times[titles[key]] > 1 else ""
        return titles[key] + machine

    return [(title(key), groups[key]) for key in sorted(groups, key=place)]
