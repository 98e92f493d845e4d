"""Numbers that no record can hold are refused where they are read, by field and file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftboard.cli import _options
from draftboard.errors import UserError
from draftboard.record.codec import LARGEST, from_json
from draftboard.record.records import Json
from draftboard.record.store import Store, load, read_run
from record_factory import make_run, random_arms

TOO_LARGE = "1" + "0" * 400
ENDLESS = 1 << 20_000
"""Python refuses to print a number of so many digits."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """One field of each kind that holds numbers."""

    share: float | None = None
    count: int = 0
    times: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()
    by_rows: dict[str, float] | None = None
    options: Any = None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("share", float("inf"), "expected a finite number, found inf"),
        ("share", float("nan"), "expected a finite number, found nan"),
        ("share", int(TOO_LARGE), "expected a finite number, found 1000"),
        ("count", int(TOO_LARGE), "expected a whole number of at most 64 bits, found 1000"),
        ("count", -LARGEST - 1, "expected a whole number of at most 64 bits, found -18446744073709551616"),
        ("times", [1.0, float("-inf")], "expected a finite number, found -inf"),
        ("times", [1.0, int(TOO_LARGE)], "expected a finite number, found 1000"),
        ("ids", [1, LARGEST + 1], "expected a whole number of at most 64 bits, found 18446744073709551616"),
        ("ids", [-LARGEST - 1, 1], "expected a whole number of at most 64 bits, found -1844"),
        ("by_rows", {"1": float("inf")}, "expected a finite number, found inf"),
        ("options", {"a": [{"b": float("inf")}]}, "expected a finite number, found inf"),
        ("options", int(TOO_LARGE), "expected a whole number of at most 64 bits, found 1000"),
        ("count", ENDLESS, "found a number too long to print"),
        ("share", [ENDLESS], "expected float, found a number too long to print"),
    ],
    ids=lambda value: value if isinstance(value, str) else "value",
)
def test_a_number_that_no_record_can_hold_is_refused_by_its_field(field: str, value: Json, said: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(Numbers, {field: value}, "a.json")
    text = str(caught.value)
    assert text.startswith(f"a.json.{field}") and said in text
    assert "\n" not in text and len(text) < 200


def test_the_place_inside_of_what_has_no_type_is_named() -> None:
    with pytest.raises(UserError, match=r"^a\.json\.options\.a\.b: expected a finite number"):
        from_json(Numbers, {"options": {"a": [{"b": float("inf")}]}}, "a.json")


def test_the_largest_numbers_are_read() -> None:
    given = {
        "share": 1e308,
        "count": -LARGEST,
        "times": [1.7e308, -1.7e308],
        "ids": [LARGEST, -LARGEST],
        "options": {"a": [LARGEST, 1e308, True, None, "x"]},
    }
    found = from_json(Numbers, given)
    assert found == Numbers(1e308, -LARGEST, (1.7e308, -1.7e308), (LARGEST, -LARGEST), None, given["options"])
    assert from_json(Numbers, {"share": 10**30}).share == 1e30


@pytest.mark.parametrize("number", ["1e999", "-1e999", TOO_LARGE])
def test_such_a_number_in_a_stored_record_names_field_and_file(number: str, tmp_path: Path) -> None:
    arms = random_arms(1, prompts=2)
    folder = Store(tmp_path).write_run(make_run(arms, id="run1"), list(arms))
    arm = folder / "guess-k4-arm00001.json"
    text = arm.read_text()
    data = json.loads(text)
    first = f'"prefill_ms":{json.dumps(data["traces"][0]["prefill_ms"])}'
    assert first in text
    arm.write_text(text.replace(first, f'"prefill_ms":{number}', 1))
    with pytest.raises(
        UserError, match=r"guess-k4-arm00001\.json\.traces\[0\]\.prefill_ms: expected a finite"
    ):
        load(folder)
    run = folder / "run.json"
    run.write_text(run.read_text().replace('"concurrency": 1', f'"concurrency": {TOO_LARGE}'))
    with pytest.raises(UserError, match=r"run\.json\.concurrency: expected a whole number of at most 64"):
        read_run(folder)


def test_an_option_of_more_digits_than_can_be_read_stays_a_text() -> None:
    assert _options([f"x={'9' * 5000}"]) == {"x": "9" * 5000}
