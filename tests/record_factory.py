"""Small synthetic records for tests: the counts and times are dictated, everything else is plausible."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from draftboard.record.records import (
    SCHEMA,
    Arm,
    Card,
    Claim,
    Divergence,
    Environment,
    Generation,
    Losslessness,
    Round,
    Rounds,
    RunRecord,
    Sampling,
    Stop,
    TargetRef,
    TaskRef,
    Trace,
    Validity,
    Weights,
)

BASELINE = "base0001"

PLAIN = Card(
    "Plain decoding", 0, "proposes nothing", "nothing", "none", None, (), "as the yardstick", None, True
)
GUESSING = Card(
    "Guessing",
    1,
    "guesses from the text",
    "nothing",
    "lookup",
    Claim("no training", "https://example.org/guessing"),
    (Claim("fast on copies", "https://example.org/claim", second_hand=True),),
    "long copies",
    "guess",
)

TARGET = TargetRef("tiny-target", None, "TinyForCausalLM", 2, 32, 9, 3, 8, 64, 4096, 512, "fused")
ENVIRONMENT = Environment(
    device="Tiny CPU",
    device_type="cpu",
    device_count=1,
    cpu="Tiny CPU",
    cpu_cores=2,
    cpu_flags=("avx2",),
    threads=2,
    memory_bytes=2**33,
    os="Linux",
    python="3.11",
    torch="2.13.0",
    transformers="5.24.0",
    numpy="2.4.6",
    driver=None,
    cuda=None,
    power_limit_w=None,
    draftboard="0.1.0",
    git_sha="0" * 40,
    git_dirty=False,
)


def make_round(
    accepted: int = 0,
    *,
    proposed: int = 4,
    emitted: int | None = None,
    hits: int | None = None,
    draft_ms: float = 1.0,
    verify_ms: float = 10.0,
    commit_ms: float = 0.5,
) -> Round:
    """A round that emits `accepted` guesses and the target's own token unless told otherwise."""
    return Round(
        proposed=proposed,
        accepted=accepted,
        emitted=accepted + 1 if emitted is None else emitted,
        hits=accepted if hits is None else hits,
        draft_ids=tuple(range(10, 10 + proposed)),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        commit_ms=commit_ms,
        confidence=None,
    )


def make_trace(
    prompt_id: str = "p0",
    rounds: Sequence[Round] | None = (),
    *,
    turn: int = 0,
    repeat: int = 0,
    other_ms: float = 0.5,
    decode_ms: float | None = None,
    prefill_ms: float = 20.0,
    draft_prefill_ms: float = 2.0,
    stop: Stop = "length",
    tokens: int | None = None,
    rounds_missing: str | None = None,
) -> Trace:
    """A reply of these rounds; by default each takes `other_ms` beyond its spans."""
    shown = list(rounds or ())
    spans = sum(r.draft_ms + r.verify_ms + r.commit_ms + other_ms for r in shown)
    decode = spans if decode_ms is None else decode_ms
    length = 1 + sum(r.emitted for r in shown) if tokens is None else tokens
    ids = tuple(100 + i for i in range(length))
    shown = list(_guessing(shown, ids))
    return Trace(
        prompt_id=prompt_id,
        category="any",
        turn=turn,
        repeat=repeat,
        prompt_ids=(1, 2, 3),
        token_ids=ids,
        pieces=tuple(f" w{i}" for i in range(length)),
        rounds=None if rounds is None else Rounds.of(shown),
        prefill_ms=prefill_ms,
        draft_prefill_ms=draft_prefill_ms,
        decode_ms=decode,
        wall_ms=prefill_ms + draft_prefill_ms + decode,
        stop=stop,
        rounds_missing=rounds_missing,
    )


def _guessing(rounds: Sequence[Round], ids: tuple[int, ...]) -> Iterator[Round]:
    """The rounds with the reply's tokens as their accepted guesses."""
    place = 1
    for one in rounds:
        said = ids[place : place + one.accepted]
        yield one._replace(draft_ids=(*said, *one.draft_ids[len(said) :]))
        place += one.emitted


def plain_trace(prompt_id: str = "p0", tokens: int = 10, ms: float = 10.0, **more: Any) -> Trace:
    """The baseline's reply of `tokens` tokens at `ms` each."""
    step = make_round(0, proposed=0, draft_ms=0.0, commit_ms=0.0, verify_ms=ms)
    return make_trace(prompt_id, [step] * (tokens - 1), other_ms=0.0, draft_prefill_ms=0.0, **more)


def make_baseline(traces: Sequence[Trace], **changes: Any) -> Arm:
    """The arm that proposes nothing."""
    arm = make_arm(traces, id=BASELINE, drafter="plain", card=PLAIN, k=None, options={}, losslessness=None)
    return replace(arm, **changes)


def make_arm(traces: Sequence[Trace], **changes: Any) -> Arm:
    """A guessing arm with K = 4 whose replies were found identical to the baseline's."""
    arm = Arm(
        id="arm00001",
        run="run1",
        drafter="guess",
        card=GUESSING,
        k=4,
        options={"num_speculative_tokens": 4},
        weights=Weights(),
        baseline=BASELINE,
        traces=tuple(traces),
        guess_pieces={"10": " no"},
        losslessness=Losslessness(len(traces), len(traces), ()),
        validity=Validity(),
        error=None,
    )
    return replace(arm, **changes)


def parted(arm: Arm, gap_ulp: float = 1.0, **facts: Any) -> Arm:
    """The arm whose reply to p3 leaves the baseline's at token 2, for the target's other likeliest token, and
    whose record tells of it."""
    traces = [
        parted_trace(trace) if trace.prompt_id == "p3" and trace.turn == 0 else trace for trace in arm.traces
    ]
    tie = Divergence("p3", 0, 0, 2, 102, 9, (9, 102), gap=0.0625 * gap_ulp, gap_ulp=gap_ulp)
    told = Losslessness(len(traces), len(traces) - 1, (tie,), **facts)
    return replace(arm, traces=tuple(traces), losslessness=told)


def parted_trace(trace: Trace) -> Trace:
    """The reply with another token 2, guessed where the old one was."""
    ids = (*trace.token_ids[:2], 9, *trace.token_ids[3:])
    rounds = None if trace.rounds is None else Rounds.of(list(_guessing(list(trace.rounds), ids)))
    return replace(trace, token_ids=ids, rounds=rounds)


def make_run(arms: Sequence[Arm], **changes: Any) -> RunRecord:
    """A float32 greedy run of these arms, the first of them its baseline."""
    prompts = tuple(dict.fromkeys(trace.prompt_id for trace in arms[0].traces))
    run = RunRecord(
        schema=SCHEMA,
        id="run1",
        created_utc="2026-01-31T12:00:00Z",
        engine="torch",
        concurrency=1,
        target=TARGET,
        dtype="float32",
        task=TaskRef("chat", "Chat", 1, "ab" * 32, "Apache-2.0", len(prompts)),
        sampling=Sampling(),
        generation=Generation(128, 1, "target", None, None, (0,)),
        suite="standard",
        indicative=False,
        repeats=1,
        warmup_replies=1,
        prompt_ids=prompts,
        command="draftboard run --suite standard",
        environment=ENVIRONMENT,
        fingerprint="f" * 12,
        testbed="tiny-cpu-2t-float32",
        baseline=arms[0].id,
        arms=tuple(arm.id for arm in arms),
    )
    return replace(run, **changes)


def random_arms(seed: int, prompts: int = 20) -> tuple[Arm, Arm]:
    """A baseline and an arm of random rounds with the same tokens, two turns for every third prompt."""
    rng = random.Random(seed)
    base, own = [], []
    for index in range(prompts):
        for turn in range(2 if index % 3 == 0 else 1):
            rounds = [_random_round(rng) for _ in range(rng.randrange(3, 12))]
            trace = make_trace(f"p{index}", rounds, turn=turn, other_ms=rng.uniform(0.1, 0.9))
            own.append(trace)
            base.append(plain_trace(f"p{index}", len(trace.token_ids), rng.uniform(8, 12), turn=turn))
    return make_baseline(base), make_arm(own)


def _random_round(rng: random.Random) -> Round:
    proposed = rng.choice([0, 1, 2, 4, 4, 4])
    return make_round(
        rng.randint(0, proposed),
        proposed=proposed,
        draft_ms=rng.uniform(0.5, 2),
        verify_ms=rng.uniform(9, 12),
        commit_ms=rng.uniform(0.1, 0.4),
    )
