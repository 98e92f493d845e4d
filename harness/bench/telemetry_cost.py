"""What sampling costs the arm that is sampled. The last line is one JSON object.

    python harness/bench/telemetry_cost.py [--repeats 10] [--tokens 64] [--prompts 6] [--device auto]

Plain decoding of the embedded target; each reply is given with the sampler's window open and with it closed,
in random order, so that a slower moment of the machine slows both. In a run the sampler exists only in the
telemetry pass, after all timing: this is its cost there. Leave the machine idle meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import torch

from draftboard.measure import loading, plugins
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.machine import BusyMeter, gpus_of
from draftboard.measure.prompts import Template
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.telemetry.request import Request
from draftboard.measure.telemetry.sampler import Sampler as Telemetry
from draftboard.record.records import Sampling
from draftboard.record.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
WINDOW_S = 15.0
"""As long as the windows of the suites whose figures are for keeps: it decides how often is polled."""


def main() -> None:
    parser = argparse.ArgumentParser(description="decoding speed with the sampler on and off")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    busy = BusyMeter()
    ms, tokens = race(options.repeats, options.tokens, options.prompts, options.device)
    per_s = {name: 1e3 * tokens[name] / ms[name] for name in ms}
    loss = 1 - per_s["on"] / per_s["off"]
    print(f"sampler off {per_s['off']:.2f} tokens/s, on {per_s['on']:.2f}: {loss:.2%} slower")
    for reason in busy.reasons():
        print(f"disturbed: {reason}")
    print(json.dumps({"tokens_per_s": per_s, "loss": loss, "disturbed": list(busy.reasons())}))


def race(repeats: int, tokens: int, prompts: int, device: str) -> tuple[dict[str, float], dict[str, int]]:
    """Decode milliseconds and emitted tokens with the window open and closed."""
    where = loading.resolve_device(device)
    target = loading.load_target(EMBEDDED_ID, dtype=loading.resolve_dtype("auto", where), device=where)
    sampler = Sampler(Sampling(), Randomness(0, where))
    plain = plugins.load("none", "draftboard_drafters").build(target, sampler)
    task, clock = load_task("chat", ROOT), Clock(where)
    template = Template(loading.load_tokenizer(loading.resolve_source(EMBEDDED_ID)), task)
    texts = [template.ids(prompt.turns[:1], []) for prompt in task.sample(prompts, 0)]
    decode(target, plain, torch.tensor(texts[0], device=where), sampler, clock, max_new_tokens=tokens)  # warm
    ms, count = {"on": 0.0, "off": 0.0}, {"on": 0, "off": 0}
    with Telemetry(Request.of_window(WINDOW_S, os.getpid(), gpus_of(where))) as telemetry:

        def answer(name: str, ids: list[int]) -> Reply:
            if name == "on":
                telemetry.begin()
            text = torch.tensor(ids, device=where)
            reply = decode(target, plain, text, sampler, clock, max_new_tokens=tokens)
            if name == "on":
                telemetry.end()
            return reply

        for name, reply in ((name, answer(name, ids)) for name, ids in order(texts, repeats)):
            ms[name] += reply.decode_ms
            count[name] += len(reply.token_ids) - 1
    return ms, count


def order(texts: list[list[int]], repeats: int) -> Iterator[tuple[str, list[int]]]:
    """Every text both ways in each repeat, the two ways in random order."""
    for _ in range(repeats):
        for ids in texts:
            for name in random.sample(["on", "off"], 2):
                yield name, ids


if __name__ == "__main__":
    main()
