"""Our loop beside transformers' own and vLLM's, so that nobody has to take the baseline's speed on trust.

The same weights, token ids, dtype, threads and, in transformers, attention kernel (sdpa). Each contender
answers the same prompts, in an order drawn anew each time; replies are compared token by token, and one that
differs is named and its prompt left out of every figure. Wall time covers prefill and decoding on all sides.
The last line is one JSON object: ratios of wall time a token, above 1 where ours is faster; null where there
was nothing to compare with.

    python harness/bench/peers.py [--repeats 5] [--tokens 64] [--prompts 3] [--k 2] [--vllm PYTHON]

Acceptance length is the tokens that came out of the target's forwards over their number, the forward over the
prompt left out (transformers drafts for that one as well, ours begins after it).
vLLM needs an environment of its own (--vllm or DRAFTBOARD_VLLM names its Python); beside it both sides run in
float32, or in what --vllm-dtype says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from contenders import constant_drafts, ours, theirs, transformers_model
from contest import Contest, contest
from vllm_peer import NoVllm, vllm

from draftboard.errors import UserError
from draftboard.measure import loading
from draftboard.measure.bandwidth import Bandwidth, measure_bandwidth
from draftboard.measure.doctor_load import bandwidth_line
from draftboard.measure.embedded import EMBEDDED_ID
from draftboard.measure.machine import BusyMeter
from draftboard.measure.prompts import Template
from draftboard.measure.target import TargetModel
from draftboard.record.tasks import load_task
from draftboard_drafters.checkpoints.shipped import located

ROOT = Path(__file__).resolve().parents[2]
LOOKUP_K = 10
"""Drafts a round of both n-gram look-ups: the default of transformers' prompt lookup."""
CONTEXT = 2048

OURS = "ours"
GENERATE = "transformers generate"
LOOKUP, SAME_RULE = "transformers prompt lookup", "ours, transformers' rule"
ASSISTED = "transformers assisted"
VLLM = "vLLM"


@dataclass(frozen=True, slots=True)
class Field:
    """Where the contests are held: our target, transformers' model of the same weights, and the settings."""

    target: TargetModel
    model: Any
    given: argparse.Namespace


def prompt_ids(target: TargetModel, task: str, count: int, category: str | None = None) -> list[torch.Tensor]:
    """Ids of the first turn of some prompts of a task."""
    chosen = load_task(task, ROOT)
    template = Template(target.tokenizer, chosen)
    prompts = [one for one in chosen.sample(None, 0) if category in (None, one.category)][:count]
    return [torch.tensor(template.ids(one.turns[:1], []), device=target.device) for one in prompts]


def race_plain(field: Field) -> Contest:
    """The baseline beside transformers' greedy generate."""
    target, tokens = field.target, field.given.tokens
    contenders = {OURS: ours(target, "none", tokens), GENERATE: theirs(field.model, tokens)}
    prompts = prompt_ids(target, "chat", field.given.prompts)
    return contest("plain decoding on chat", contenders, prompts, field.given.repeats)


def race_lookup(field: Field) -> Contest:
    """N-gram look-up beside transformers' prompt look-up: with our defaults, and by transformers' own rule
    (the same n-grams, the leftmost match), where the drafts are the same and only the loops differ."""
    target, tokens, k = field.target, field.given.tokens, {"num_speculative_tokens": LOOKUP_K}
    settings = {"prompt_lookup_num_tokens": LOOKUP_K, "max_matching_ngram_size": 2}
    contenders = {
        OURS: ours(target, "ngram", tokens, **k),
        SAME_RULE: ours(target, "ngram", tokens, **k, max_n=2, policy="first"),
        LOOKUP: theirs(field.model, tokens, **settings),
    }
    prompts = prompt_ids(target, "copy", field.given.prompts, "verbatim")
    title = f"n-gram look-up on copy, K = {LOOKUP_K}"
    return contest(title, contenders, prompts, field.given.repeats)


def race_assisted(field: Field) -> Contest | None:
    """A draft model in our loop beside the same weights assisting transformers, K drafts in every round."""
    target, given = field.target, field.given
    try:
        source = located(given.draft, "draft_model", target)
        own = ours(target, "draft_model", given.tokens, model=source, num_speculative_tokens=given.k)
    except UserError as error:
        print(f"no assisted generation: {error}")
        return None
    assistant = constant_drafts(transformers_model(source, target), given.k)
    contenders = {OURS: own, ASSISTED: theirs(field.model, given.tokens, assistant_model=assistant)}
    prompts = prompt_ids(target, "chat", given.prompts)
    return contest(f"draft model on chat, K = {given.k}", contenders, prompts, given.repeats)


def race_vllm(field: Field) -> Contest | None:
    """The baseline beside vLLM's CPU back end, both in `--vllm-dtype`."""
    given, device = field.given, field.target.device
    if device.type != "cpu":
        print("no vLLM on the CPU: the target is on a GPU")
        return None
    if not given.vllm:
        print("no vLLM on the CPU: name the Python of its environment with --vllm or DRAFTBOARD_VLLM")
        return None
    dtype = loading.resolve_dtype(given.vllm_dtype, device)
    target = loading.load_target(given.target, dtype=dtype, device=device, max_context=CONTEXT)
    source, name = loading.resolve_source(given.target), loading.dtype_name(dtype)
    prompts = prompt_ids(target, "chat", given.prompts)
    try:
        with vllm(given.vllm, source, name, CONTEXT, given.tokens, target.stop_ids) as (version, answer):
            contenders = {OURS: ours(target, "none", given.tokens), VLLM: answer}
            title = f"plain decoding on chat, {name}, vLLM {version}"
            return contest(title, contenders, prompts, given.repeats)
    except NoVllm as error:
        print(f"no vLLM on the CPU: {error}")
        return None


def result(
    chat: Contest, copy: Contest, assisted: Contest | None, served: Contest | None, floor_ms: float | None
) -> dict[str, Any]:
    """The ratios, null where there was no contest or no floor. The share of the floor is that of decoding
    alone."""
    decoding = chat.standings[0].decode_paces
    assert decoding is not None
    share = round(floor_ms / statistics.median(decoding), 3) if floor_ms is not None and decoding else None
    contests = [one for one in (chat, copy, assisted, served) if one is not None]
    return {
        "baseline_vs_transformers": chat.ratio(GENERATE, OURS),
        "ngram_copy_vs_prompt_lookup": copy.ratio(LOOKUP, OURS),
        "ngram_copy_same_rule_vs_prompt_lookup": copy.ratio(LOOKUP, SAME_RULE),
        "assisted_vs_transformers": None if assisted is None else assisted.ratio(ASSISTED, OURS),
        "baseline_share_of_floor": share,
        "baseline_vs_vllm_cpu": None if served is None else served.ratio(VLLM, OURS),
        "differing_replies": sum(len(one.differences) for one in contests),
    }


def print_bandwidth(found: Bandwidth) -> None:
    """The doctor's line on what memory can do, with its advice."""
    line = bandwidth_line(found)
    print(f"{line.name}: {line.value}{f'; {line.advice}' if line.advice else ''}")


def floor_of(target: TargetModel, found: Bandwidth) -> float | None:
    """Milliseconds that a token takes at least, printed with the bandwidth; None where it is not known."""
    print_bandwidth(found)
    if target.token_bytes is None or not found.outdoes_cache:
        print("no floor: what a token reads, or what memory can do, is not known")
        return None
    floor_ms = target.token_bytes / found.best * 1e3
    print(f"floor {floor_ms:.1f} ms a token: {target.token_bytes / 1e6:.0f} MB")
    return floor_ms


def load(given: argparse.Namespace) -> Field:
    """Our target and transformers' model over the same weights."""
    device = loading.resolve_device()  # the first GPU, which is the current one, or the CPU
    dtype = loading.resolve_dtype(given.dtype, device)
    target = loading.load_target(given.target, dtype=dtype, device=device, max_context=CONTEXT)
    return Field(target, transformers_model(loading.resolve_source(given.target), target), given)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--target", default=EMBEDDED_ID)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--draft", default="shipped", help="draft model: a folder, a hub id, or `shipped`")
    parser.add_argument("--k", type=int, default=2, help="its drafts a round")
    parser.add_argument("--vllm", default=os.environ.get("DRAFTBOARD_VLLM"), help="vLLM's Python")
    parser.add_argument("--vllm-dtype", default="float32")
    return parser.parse_args(arguments)


def main() -> None:
    """Holds the contests and prints the tables and the ratios."""
    given = options()
    field = load(given)
    busy, began = BusyMeter(), time.monotonic()
    target, found = field.target, measure_bandwidth(field.target.device, field.target.dtype)
    alone = race_plain(field), race_lookup(field), race_assisted(field)
    disturbed = busy.reasons()  # before vLLM, whose process is another one
    contests = *alone, race_vllm(field)
    for one in contests:
        print("\n".join(["", *one.lines()]) if one else "", flush=True)
    floor_ms = floor_of(target, found)
    for reason in disturbed:
        print(f"warning: {reason}; repeat on a quiet machine")
    name = loading.dtype_name(target.dtype)
    print(f"{torch.get_num_threads()} threads, {name}, {time.monotonic() - began:.0f} s")
    print(json.dumps(result(*contests, floor_ms)))


if __name__ == "__main__":
    main()
