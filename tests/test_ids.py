"""Ids from facts, and texts without a user's folders."""

from __future__ import annotations

import pytest

from draftboard.record.ids import digest, without_folders
from draftboard.record.records import Sampling


def test_the_same_facts_give_the_same_id_and_others_another() -> None:
    facts = ["a", {"b": 1, "a": None}, Sampling(seed=3)]
    assert digest(facts) == digest(["a", {"a": None, "b": 1}, Sampling(seed=3)])
    assert len({digest(facts), digest(["a"]), digest(["a", {"b": 1, "a": None}, Sampling(seed=4)])}) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/models/tiny", "tiny"),
        ("~/models/tiny", "tiny"),
        ("model=/data/x/draft", "model=draft"),
        ("some-org/some-model@main", "some-org/some-model@main"),
        ("models/tiny", "models/tiny"),
        ("mine.toml", "mine.toml"),
        ("cannot load '/home/me/x' as a model", "cannot load 'x' as a model"),
        ("1/2 of it, a / b", "1/2 of it, a / b"),
        ("/", "/"),
    ],
)
def test_absolute_paths_lose_their_folders(text: str, expected: str) -> None:
    assert without_folders(text) == expected
