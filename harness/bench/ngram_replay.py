"""How many tokens a round n-gram lookup would have had, by its settings. The last line is one JSON object.

    python harness/bench/ngram_replay.py [--results results] [--k 8]

Greedy replies do not depend on the drafter, so the replies of plain decoding that records hold are replayed:
each round proposes from the text so far, and as much is accepted as the reply goes on with. Figures are
acceptance lengths by task, the target's own token counted, over all replies at temperature 0.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from draftboard.drafter import Drafter
from draftboard.record.store import Store, load
from draftboard_drafters import ngram

NO_FEATURES = torch.empty(0)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"min_n": 1, "max_n": 4},
    {"min_n": 2, "max_n": 4},
    {"min_n": 1, "max_n": 3},
    {"min_n": 1, "max_n": 5},
    {"min_n": 5, "max_n": 5},
    {"min_n": 1, "max_n": 4, "policy": "longest-then-earliest"},
)
"""The defaults, and what differs from them."""

Reply = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and reply."""


def main() -> None:
    parser = argparse.ArgumentParser(description="acceptance of n-gram lookup by its settings")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--k", type=int, default=8)
    options = parser.parse_args()
    replies = greedy_replies(options.results)
    tasks = sorted(replies)
    print(f"{'':60}" + "".join(f"{task:>8}" for task in tasks))
    print(f"{'replies':60}" + "".join(f"{len(replies[task]):>8}" for task in tasks))
    figures = []
    for settings in SETTINGS:
        lengths = {task: acceptance_length(replies[task], options.k, settings) for task in tasks}
        print(f"{settings!s:60}" + "".join(f"{lengths[task]:>8.2f}" for task in tasks))
        figures.append({**settings, **{task: round(length, 3) for task, length in lengths.items()}})
    print(json.dumps({"k": options.k, "settings": figures}))


def greedy_replies(results: Path) -> dict[str, set[Reply]]:
    """What plain decoding said at temperature 0, by task; repeats count once."""
    found: dict[str, set[Reply]] = defaultdict(set)
    for stored in Store(results).runs():
        run, arms = load(stored.path)
        if run.sampling.temperature == 0:
            (plain,) = (arm for arm in arms if arm.id == run.baseline)
            found[run.task.name] |= {(one.prompt_ids, one.token_ids) for one in plain.traces}
    return found


def acceptance_length(replies: set[Reply], k: int, settings: dict[str, Any]) -> float:
    """Tokens emitted over rounds, pooled; the first token of a reply is the prefill's."""
    target: Any = SimpleNamespace(device=torch.device("cpu"))
    drafter = ngram.build(target, None, num_speculative_tokens=k, **settings)  # type: ignore[arg-type]
    rounds = sum(rounds_of(drafter, *reply) for reply in replies)
    return sum(len(said) - 1 for _, said in replies) / rounds


def rounds_of(drafter: Drafter, prompt: Sequence[int], said: Sequence[int]) -> int:
    """Rounds after the first token of one reply."""
    drafter.prefill(torch.tensor([*prompt, said[0]]), NO_FEATURES)
    at, rounds = 1, 0
    while at < len(said):
        guesses = drafter.propose(len(said) - at - 1).tokens.tolist()
        hits = next((i for i, guess in enumerate(guesses) if guess != said[at + i]), len(guesses))
        drafter.commit(torch.tensor(said[at : at + hits + 1]), NO_FEATURES)
        at, rounds = at + hits + 1, rounds + 1
    return rounds


if __name__ == "__main__":
    main()
