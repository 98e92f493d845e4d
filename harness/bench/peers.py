"""Our loop beside transformers' own, so that nobody has to take the baseline's speed on trust.

One process, the same weights, token ids, dtype, threads and attention kernel (sdpa). Each contender answers
the same prompts, in random order within every repeat; replies are compared token by token. Wall time covers
prefill and decoding on both sides. The last line is one JSON object: ratios of total wall times, above 1
where ours is faster; null where there is nothing to compare with yet.

    python harness/bench/peers.py [--repeats 5] [--tokens 64] [--prompts 3]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from draftboard.measure import loading, plugins
from draftboard.measure.bandwidth import measure_bandwidth
from draftboard.measure.clock import Clock
from draftboard.measure.decode import decode
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.machine import BusyMeter
from draftboard.measure.prompts import Template
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard.record.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
LOOKUP_K = 10
"""Drafts a round of both n-gram look-ups: the default of transformers' prompt lookup."""

Contender = Callable[[torch.Tensor], tuple[list[int], float]]
"""Reply ids and wall milliseconds for prompt ids [n]."""


def ours(target: TargetModel, drafter: str, tokens: int, **options: Any) -> Contender:
    """Our loop with a drafter."""
    sampler = Sampler(Sampling(), Randomness(0, target.device))
    module = plugins.load(drafter, "draftboard_drafters")
    built, clock = module.build(target, sampler, **options), Clock(target.device)

    def answer(ids: torch.Tensor) -> tuple[list[int], float]:
        reply = decode(target, built, ids, sampler, clock, max_new_tokens=tokens)
        return list(reply.token_ids), reply.wall_ms

    return answer


def theirs(model: Any, tokens: int, **options: Any) -> Contender:
    """transformers' generate, greedy."""
    clock = Clock(model.device)

    def answer(ids: torch.Tensor) -> tuple[list[int], float]:
        began = clock.now_ms()
        with torch.inference_mode():
            text = model.generate(
                ids[None],
                attention_mask=torch.ones_like(ids[None]),
                max_new_tokens=tokens,
                do_sample=False,
                **options,
            )
        return text[0, len(ids) :].tolist(), clock.now_ms() - began

    return answer


@dataclass(frozen=True)
class Contest:
    """Wall milliseconds a token over all prompts, by contender and repeat."""

    title: str
    paces: dict[str, list[float]]

    def ratio(self, slow: str, fast: str) -> float:
        """Median over the repeats of one contender's time over another's."""
        pairs = zip(self.paces[slow], self.paces[fast], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    def show(self) -> None:
        """One line a contender: median and range over the repeats."""
        print(f"\n{self.title}")
        for name, paces in self.paces.items():
            middle = statistics.median(paces)
            print(f"  {name:<28} {middle:7.1f} ms a token   ({min(paces):.1f} to {max(paces):.1f})")


def contest(
    title: str, contenders: dict[str, Contender], prompts: list[torch.Tensor], repeats: int
) -> Contest:
    """Every contender answers every prompt, `repeats` times. Exits when two replies differ."""
    dice, totals = random.Random(0), {name: [0.0] * repeats for name in contenders}
    tokens = 0
    for contender in contenders.values():
        contender(prompts[0])
    for repeat in range(repeats):
        for number, ids in enumerate(prompts):
            replies = {}
            for name in dice.sample(list(contenders), len(contenders)):
                replies[name], wall = contenders[name](ids)
                totals[name][repeat] += wall
            if len({tuple(reply) for reply in replies.values()}) != 1:
                sys.exit(f"peers: replies to prompt {number} differ: {replies}")
            tokens += len(replies[name])
    paces = {name: [wall * repeats / tokens for wall in walls] for name, walls in totals.items()}
    return Contest(f"{title}: {len(prompts)} prompts, {tokens // repeats} tokens, {repeats} repeats", paces)


def prompt_ids(target: TargetModel, task: str, count: int, category: str | None = None) -> list[torch.Tensor]:
    """Ids of the first turn of some prompts of a task."""
    chosen = load_task(task, ROOT)
    template = Template(target.tokenizer, chosen)
    prompts = [one for one in chosen.sample(None, 0) if category in (None, one.category)][:count]
    return [torch.tensor(template.ids(one.turns[:1], []), device=target.device) for one in prompts]


def race_plain(target: TargetModel, model: Any, given: argparse.Namespace) -> Contest:
    """The baseline beside transformers' greedy generate."""
    contenders = {
        "ours": ours(target, "none", given.tokens),
        "transformers generate": theirs(model, given.tokens),
    }
    prompts = prompt_ids(target, "chat", given.prompts)
    return contest("plain decoding on chat", contenders, prompts, given.repeats)


def race_lookup(target: TargetModel, model: Any, given: argparse.Namespace) -> Contest:
    """N-gram look-up beside transformers' prompt look-up: with our defaults, and by transformers' own rule
    (the same n-grams, the leftmost match), where the drafts are the same and only the loops differ."""
    k = {"num_speculative_tokens": LOOKUP_K}
    contenders = {
        "ours, n-gram": ours(target, "ngram", given.tokens, **k),
        "ours, transformers' rule": ours(target, "ngram", given.tokens, **k, max_n=2, policy="first"),
        "transformers prompt lookup": theirs(
            model, given.tokens, prompt_lookup_num_tokens=LOOKUP_K, max_matching_ngram_size=2
        ),
    }
    prompts = prompt_ids(target, "copy", given.prompts, "verbatim")
    return contest(f"n-gram look-up on copy, K = {LOOKUP_K}", contenders, prompts, given.repeats)


def load(given: argparse.Namespace) -> tuple[TargetModel, Any]:
    """Our target and transformers' model over the same weights."""
    device = loading.resolve_device()  # the first GPU, which is the current one, or the CPU
    dtype = loading.resolve_dtype(given.dtype, device)
    source = loading.resolve_source(given.target)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="sdpa")
    model = model.to(device).eval()
    tokenizer = loading.load_tokenizer(source)
    return TargetModel(model, id=given.target, max_context=2048, tokenizer=tokenizer), model


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--target", default=EMBEDDED_ID)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Runs both contests and prints the ratios."""
    given = options()
    target, model = load(given)
    busy, began = BusyMeter(), time.monotonic()
    chat, copy = race_plain(target, model, given), race_lookup(target, model, given)
    chat.show()
    copy.show()
    floor_ms = target.weight_bytes / measure_bandwidth(target.device, target.dtype).best * 1e3
    for reason in busy.reasons():
        print(f"warning: {reason}; repeat on a quiet machine")
    name = loading.dtype_name(target.dtype)
    print(f"\n{torch.get_num_threads()} threads, {name}, {time.monotonic() - began:.0f} s")
    lookup = "transformers prompt lookup"
    result = {
        "baseline_vs_transformers": chat.ratio("transformers generate", "ours"),
        "ngram_copy_vs_prompt_lookup": copy.ratio(lookup, "ours, n-gram"),
        "ngram_copy_same_rule_vs_prompt_lookup": copy.ratio(lookup, "ours, transformers' rule"),
        "assisted_vs_transformers": None,
        "baseline_share_of_floor": round(floor_ms / statistics.median(chat.paces["ours"]), 3),
        "baseline_vs_vllm_cpu": None,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
