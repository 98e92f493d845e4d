"""Time that belongs to no span shows as T_other: decoding's wall time less all spans, per round.

    python harness/bench/inject.py [--drafter none] [--repeats 5] [--prompts 3] [--tokens 64] [--ms 5]

Answers the same prompts with an honest clock and with one that sleeps between two spans of every round, in
random order within every repeat, and compares their T_other: it must rise by what was slept. Also prints the
share of decoding's wall time that is T_other when nothing is injected. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from draftboard.measure import loading, plugins
from draftboard.measure.clock import Clock, Span
from draftboard.measure.decode import Reply, decode
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.prompts import Template
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard.record.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]


class SleepyClock(Clock):
    """Sleeps before every verification, when the draft's span is over; adds up how long it really slept."""

    def __init__(self, device: torch.device, ms: float) -> None:
        super().__init__(device)
        self.sleep_ms, self.slept_ms = ms, 0.0

    def span(self, name: str) -> Span:
        """The span itself is honest."""
        if name == "verify":
            began = time.perf_counter()
            time.sleep(self.sleep_ms / 1e3)
            self.slept_ms += (time.perf_counter() - began) * 1e3
        return super().span(name)


def other_ms(reply: Reply) -> float:
    """Decoding time that no span of the reply explains."""
    return reply.decode_ms - sum(one.draft_ms + one.verify_ms + one.commit_ms for one in reply.rounds)


def per_round(replies: Iterable[Reply]) -> float:
    """T_other in milliseconds a round, pooled over replies."""
    pooled = list(replies)
    return sum(map(other_ms, pooled)) / sum(len(reply.rounds) for reply in pooled)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs both clocks on the same prompts; one uncounted reply warms each of them up."""
    device = loading.resolve_device("auto")
    target = loading.load_target(given.target, dtype=loading.resolve_dtype("auto", device), device=device)
    task, sampler = load_task("chat", ROOT), Sampler(Sampling(), Randomness(0, device))
    template = Template(target.tokenizer, task)
    prompts = [
        torch.tensor(template.ids([p.turns[0]], []), device=device) for p in task.prompts[: given.prompts]
    ]
    drafter = plugins.load(given.drafter, "draftboard_drafters").build(target, sampler)
    honest, sleepy = Clock(device), SleepyClock(device, given.ms)

    def answer(prompt: torch.Tensor, clock: Clock) -> Reply:
        return decode(target, drafter, prompt, sampler, clock, max_new_tokens=given.tokens)

    cells = [(prompt, clock) for prompt in prompts for clock in (honest, sleepy)]
    for clock in (honest, sleepy):
        answer(prompts[0], clock)
    sleepy.slept_ms = 0.0
    replies: dict[Clock, list[Reply]] = {honest: [], sleepy: []}
    dice = random.Random(0)
    for _ in range(given.repeats):
        for prompt, clock in dice.sample(cells, len(cells)):
            replies[clock].append(answer(prompt, clock))
    return figures(given, replies[honest], replies[sleepy], sleepy.slept_ms)


def figures(
    given: argparse.Namespace, plain: list[Reply], injected: list[Reply], slept_ms: float
) -> dict[str, Any]:
    """What is reported."""
    without, with_sleep = per_round(plain), per_round(injected)
    return {
        "target": given.target,
        "drafter": given.drafter,
        "rounds": sum(len(reply.rounds) for reply in plain),
        "other_ms": round(without, 4),
        "other_ms_injected": round(with_sleep, 4),
        "rise_ms": round(with_sleep - without, 4),
        "slept_ms": round(slept_ms / sum(len(reply.rounds) for reply in injected), 4),
        "other_share": round(sum(map(other_ms, plain)) / sum(reply.decode_ms for reply in plain), 5),
    }


def main() -> None:
    """Prints the figures in words and, last, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED_ID)
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--ms", type=float, default=5.0, help="how long to sleep between two spans of a round"
    )
    found = measure(given := parser.parse_args())
    print(f"T_other a round: {found['other_ms']:.3f} ms, with the sleep {found['other_ms_injected']:.3f} ms")
    print(f"rise {found['rise_ms']:.3f} ms; {given.ms:g} ms asked, {found['slept_ms']:.3f} ms really slept")
    print(f"T_other's share of decoding without it: {found['other_share']:.2%} (goal: at most 3 %)")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
