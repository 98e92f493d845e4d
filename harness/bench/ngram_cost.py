"""What an n-gram proposal costs with a short and with a long context. The last line is one JSON object.

    python harness/bench/ngram_cost.py [--short 300] [--long 30000] [--repeats 2000]

Both drafters hold text in which every proposal finds a match. Their rounds alternate, so that a slower moment
of the machine slows both. Times are medians in microseconds: one proposal, and committing one token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

from draftboard.drafter import Drafter
from draftboard_drafters import ngram

NO_FEATURES = torch.empty(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of an n-gram proposal by context length")
    parser.add_argument("--short", type=int, default=300)
    parser.add_argument("--long", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=2000)
    options = parser.parse_args()
    lengths = (options.short, options.long)
    drafters = [prefilled(length) for length in lengths]
    rounds = [[one_round(drafter) for drafter in drafters] for _ in range(options.repeats)]
    report(lengths, rounds[len(rounds) // 10 :])


def prefilled(length: int) -> Drafter:
    """A drafter over a repeating text of `length` tokens."""
    target: Any = SimpleNamespace(device=torch.device("cpu"))
    sampler: Any = None
    drafter = ngram.build(target, sampler)
    dice = random.Random(0)
    period = [dice.randrange(40_000) for _ in range(100)]
    drafter.prefill(torch.tensor([period[i % 100] for i in range(length)]), NO_FEATURES)
    return drafter


def one_round(drafter: Drafter) -> tuple[float, float]:
    """Microseconds of a proposal, and of committing its first guess."""
    began = time.perf_counter()
    draft = drafter.propose(64)
    proposed = time.perf_counter()
    drafter.commit(draft.tokens[:1], NO_FEATURES)
    return (proposed - began) * 1e6, (time.perf_counter() - proposed) * 1e6


def report(lengths: tuple[int, int], rounds: list[list[tuple[float, float]]]) -> None:
    """Prints the medians and, last, the same as JSON."""
    propose, commit = (
        [statistics.median(one[arm][part] for one in rounds) for arm in range(2)] for part in range(2)
    )
    for length, proposing, committing in zip(lengths, propose, commit, strict=True):
        print(f"{length:>7} tokens of context: propose {proposing:.1f} us, commit {committing:.1f} us")
    print(f"proposal, long over short: {propose[1] / propose[0]:.2f} (goal: at most 2)")
    figures = {
        "context": list(lengths),
        "propose_us": [round(value, 2) for value in propose],
        "commit_us": [round(value, 2) for value in commit],
        "ratio": round(propose[1] / propose[0], 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
