"""Candidate rows of the copy task that this project wrote itself, from a seeded generator.

The facts are made up. Every choice is a hash of a key, not a random generator's, so that every Python version
makes the same rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

SEED = "draftboard copy 1"
ORIGIN = "made by harness/bench/copy_rows.py"
LICENCE = "Apache-2.0"

T = TypeVar("T")
Row = dict[str, Any]

PEOPLE = (
    "Ada Whitfield", "Jonas Berger", "Mira Castellano", "Tomas Lindqvist", "Priya Raman", "Owen Gallagher",
    "Lucia Ferreira", "Samuel Okafor", "Hanna Virtanen", "Emil Novak", "Noor Haddad", "Grace Mbeki",
)  # fmt: skip
CITIES = (
    "Rotterdam", "Valparaiso", "Trondheim", "Galway", "Brisbane", "Ljubljana", "Kumasi", "Halifax",
    "Tampere", "Porto", "Nagoya", "Cusco",
)  # fmt: skip
GOODS = (
    "brass hinge", "oak shelf board", "copper wire spool", "ceramic floor tile", "steel hex bolt",
    "linen curtain panel", "rubber door seal", "glass desk lamp", "canvas tool bag", "paper lantern",
    "cedar fence post", "enamel door number", "wool floor mat", "tin watering can", "pine picture frame",
    "cast iron hook",
)  # fmt: skip
NOTES = (
    "The plumber comes on Monday at nine", "Twelve oak boards are stacked behind the shed",
    "The library closes early on Friday", "The tile company has not sent its invoice",
    "The tomatoes need water every evening", "The spare key hangs beside the cellar door",
    "The bakery keeps two loaves for us on Saturday", "The blue bicycle has a flat rear tyre",
    "The heating was last serviced in October", "The neighbours feed the cat until Sunday",
    "The parcel from Porto is at the post office", "The roof above the kitchen still leaks",
    "The school concert begins at half past six", "The green paint is nearly used up",
    "The dentist moved the appointment to Thursday", "The garden gate needs a new latch",
)  # fmt: skip
EVENTS = (
    "The pump in hall three was started", "Pressure reached four bar",
    "The valve at the north gate did not answer", "A technician was called",
    "The valve was opened by hand", "The second pump took over",
    "The level in the upper tank fell below the mark", "The alarm in the control room was reset",
    "The filter of line two was changed", "The backup generator was tested for ten minutes",
)  # fmt: skip


def drawn(pool: Sequence[T], count: int, key: str) -> list[T]:
    """`count` different members of a pool, in an order that the key decides."""
    return sorted(pool, key=lambda item: hashlib.sha256(f"{SEED}/{key}/{item}".encode()).digest())[:count]


def number(low: int, high: int, key: str) -> int:
    """A whole number from low to high that the key decides."""
    return low + int.from_bytes(hashlib.sha256(f"{SEED}/{key}".encode()).digest()[:8]) % (high - low + 1)


def notes(key: str) -> list[str]:
    return drawn(NOTES, number(5, 7, f"{key}/size"), key)


def goods(key: str) -> list[str]:
    return drawn(GOODS, number(9, 12, f"{key}/size"), key)


def orders(key: str) -> list[Row]:
    size = number(4, 5, f"{key}/size")
    columns = zip(drawn(PEOPLE, size, key), drawn(CITIES, size, key), drawn(GOODS, size, key), strict=True)
    return [
        {"name": name, "city": city, "item": item, "quantity": number(12, 980, f"{key}/{name}")}
        for name, city, item in columns
    ]


def order(key: str) -> Row:
    first = orders(key)[0]
    phone, street = f"555-0{number(100, 199, f'{key}/phone')}", number(2, 98, f"{key}/street")
    return {**first, "street": f"{street} Harbour Road", "phone": phone, "note": "deliver before noon"}


def events(key: str) -> list[tuple[str, str]]:
    day, texts = number(10, 28, f"{key}/day"), drawn(EVENTS, number(5, 6, f"{key}/size"), key)
    minutes = [10 * i + number(0, 9, f"{key}/{i}") for i in range(len(texts))]
    return [(f"2031-04-{day} 09:{minute:02}", text) for minute, text in zip(minutes, texts, strict=True)]


def numbered(lines: list[str]) -> str:
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def dashed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def paragraph(lines: list[str]) -> str:
    return " ".join(f"{line}." for line in lines)


def sentences(lines: list[str]) -> str:
    return "\n".join(f"{line}." for line in lines)


def numbered_sentences(lines: list[str]) -> str:
    return numbered([f"{line}." for line in lines])


def log(entries: list[tuple[str, str]]) -> str:
    return "\n".join(f"{when} {what}" for when, what in entries)


def untimed(entries: list[tuple[str, str]]) -> str:
    return "\n".join(what for _, what in entries)


def separated(separator: str) -> Callable[[list[Row]], str]:
    return lambda rows: "\n".join(
        separator.join(map(str, cells)) for cells in [rows[0].keys(), *(row.values() for row in rows)]
    )


def json_lines(rows: list[Row]) -> str:
    return "\n".join(map(json.dumps, rows))


def table(rows: list[Row]) -> str:
    head, *body = [f"| {line} |" for line in separated(" | ")(rows).split("\n")]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def indented(row: Row) -> str:
    return json.dumps(row, indent=2)


def yaml(row: Row) -> str:
    return "\n".join(f"{key}: {value}" for key, value in row.items())


@dataclass(frozen=True)
class Reformat:
    """A kind of reformatting: what is asked, the facts, and how they look before and after."""

    name: str
    asked: str
    facts: Callable[[str], Any]
    before: Callable[[Any], str]
    after: Callable[[Any], str]


REFORMATS = (
    Reformat(
        "numbers-dashes", "Strip the numbers from this list; use dashes instead.", notes, numbered, dashed
    ),
    Reformat("text-lines", "Put each sentence of this text on its own line.", notes, paragraph, sentences),
    Reformat("lines-numbers", "Add line numbers to this text.", notes, sentences, numbered_sentences),
    Reformat("notes-bullets", "Turn these notes into a bullet list.", notes, "; ".join, dashed),
    Reformat("list-lines", "Put this Python list on separate lines.", goods, json.dumps, "\n".join),
    Reformat("log-times", "Remove the times from this log.", events, log, untimed),
    Reformat("csv-json-lines", "Convert this CSV to JSON lines.", orders, separated(","), json_lines),
    Reformat("json-lines-csv", "Convert these JSON lines to CSV.", orders, json_lines, separated(",")),
    Reformat("csv-table", "Turn this CSV data into a Markdown table.", orders, separated(","), table),
    Reformat("table-csv", "Write this Markdown table as CSV.", orders, table, separated(",")),
    Reformat("json-indented", "Put each key of this JSON on its own line.", order, json.dumps, indented),
    Reformat("json-yaml", "Write this JSON as YAML.", order, indented, yaml),
)

RECORDS: tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...] = (
    (orders, separated(",")),
    (orders, json_lines),
    (events, log),
    (goods, numbered),
)


def reformat_rows(kind: Reformat, count: int) -> Iterator[Row]:
    """`count` candidates of one kind, each with the answer a careful writer would give."""
    for i in range(1, count + 1):
        facts = kind.facts(f"{kind.name}/{i}")
        yield {
            "id": f"reformat-{kind.name}-{i}",
            "category": "reformat",
            "turns": [f"{kind.asked}\n\n{kind.before(facts)}"],
            "reference": kind.after(facts),
            "licence": LICENCE,
            "source": ORIGIN,
        }


def record_texts(count: int) -> Iterator[tuple[str, str]]:
    """`count` names and texts of records to reprint."""
    for i in range(1, count + 1):
        facts, render = RECORDS[i % len(RECORDS)]
        yield f"records-{i}", render(facts(f"records/{i}"))
