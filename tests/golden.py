"""The golden cases: tiny checkpoints in the published layouts, and what their reference code makes of them.

`data/golden/README.md` says how the numbers arose. A case is replayed through the engine's own decoding loop
in float32; drafted ids, accepted counts and committed ids have to be equal, logits within `TOLERANCE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from draftboard.drafter import Draft, Drafter, DraftSampler, Target
from draftboard.measure.clock import Clock
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling

FOLDER = Path(__file__).parent / "data" / "golden"
TOLERANCE = 1e-3
CONTEXT = 128
"""Positions of the targets' caches: more than any golden text has."""

Make = Callable[[Target, DraftSampler], Drafter]
Run = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One folder of golden data. `logits` are float32 by `<run>.round<i>.<what>`."""

    name: str
    expected: dict[str, Any]
    logits: dict[str, Tensor]

    @property
    def drafter(self) -> str:
        """The folder of the checkpoint."""
        return str(FOLDER / self.name / "drafter")

    @property
    def target(self) -> TargetModel:
        return golden_target(Path(self.expected["target"]).name)

    def run(self, name: str) -> Run:
        return next(run for run in self.expected["runs"] if run["name"] == name)


@cache
def case(name: str) -> Case:
    folder = FOLDER / name
    expected = json.loads((folder / "expected.json").read_text())
    return Case(name, expected, load_file(folder / "expected.safetensors"))


@cache
def golden_target(name: str) -> TargetModel:
    """A golden target in float32, loaded once."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "targets" / name, dtype=torch.float32).eval()
    return TargetModel(model, id=name, max_context=CONTEXT, stop_ids=frozenset())


def runs(*cases: str) -> list[tuple[str, str]]:
    """(case, run) for every run of these cases."""
    return [(name, run["name"]) for name in cases for run in case(name).expected["runs"]]


@dataclass
class Recorder(Sampler):
    """A greedy sampler that keeps the logits it was shown, round by round."""

    device: torch.device
    rounds: list[list[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(Sampling(), Randomness(0, self.device))

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        self.rounds[-1].append(logits)
        return super().draw(logits)

    def seen(self, number: int) -> Tensor:
        """The logits [rows, Vd] of one round."""
        return torch.cat(self.rounds[number])


class Watched:
    """A drafter whose proposals open a round of the recorder and are kept."""

    def __init__(self, drafter: Drafter, recorder: Recorder) -> None:
        self._drafter, self._recorder = drafter, recorder
        self.drafts: list[Draft] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, limit: int) -> Draft:
        self._recorder.rounds.append([])
        self.drafts.append(self._drafter.propose(limit))
        return self.drafts[-1]


@dataclass(frozen=True)
class Replay:
    """A golden run decoded by the engine."""

    reply: Reply
    drafts: list[Draft]
    recorder: Recorder

    @property
    def committed(self) -> list[list[int]]:
        """The tokens of each round."""
        ids, at = list(self.reply.token_ids), 1
        rounds = []
        for emitted in self.reply.rounds.emitted:
            rounds.append(ids[at : at + emitted])
            at += emitted
        return rounds


def opening(run: Run, rounds: int) -> Run:
    """The first rounds of a run, for comparisons that need no more."""
    kept = run["rounds"][:rounds]
    length = 1 + sum(len(one["committed_ids"]) for one in kept)
    return {**run, "rounds": kept, "output_ids": run["output_ids"][:length], "max_new_tokens": length}


def replay(which: Case, run: Run, make: Make) -> Replay:
    """Decodes a run's prompt until its last round is complete: the reference loops finish a round that
    reaches the length limit, the engine cuts it."""
    target = which.target
    recorder = Recorder(target.device)
    drafter: Any = Watched(make(target, recorder), recorder)
    plain = Sampler(Sampling(), Randomness(0, target.device))
    prompt, room = torch.tensor(run["prompt_ids"]), run["max_new_tokens"] + which.expected["K"] + 2
    target.stop_ids = frozenset(run["stop_token_ids"] or ())
    try:
        reply = decode(target, drafter, prompt, plain, Clock(target.device), max_new_tokens=room)
    finally:
        target.stop_ids = frozenset()
    return Replay(reply, drafter.drafts, recorder)


def check_tokens(run: Run, found: Replay) -> None:
    """The text, and in every round what was drafted, accepted and committed.

    Reference loops differ in what they count once a stop token stands inside a draft: those that go on
    counting the verifier's hits commit the tokens behind it too.
    """
    rounds, stops = found.reply.rounds, set(run["stop_token_ids"] or ())
    assert list(found.reply.token_ids[: len(run["output_ids"])]) == run["output_ids"]
    assert (
        run["output_ids"][: len(run["plain_greedy_ids"])] == run["plain_greedy_ids"][: len(run["output_ids"])]
    )
    assert len(rounds) == len(run["rounds"]) or not stops
    for number, expected in enumerate(run["rounds"]):
        assert list(rounds.draft_ids[number]) == expected["draft_ids"], f"round {number}"
        committed = expected["committed_ids"]
        inside = [at for at, token in enumerate(committed[: expected["accepted"]]) if token in stops]
        went_on = bool(inside) and len(committed) > inside[0] + 1
        assert (rounds.hits if went_on else rounds.accepted)[number] == expected["accepted"], (
            f"round {number}"
        )
        cut = committed[: inside[0] + 1] if inside else committed
        assert found.committed[number] == cut, f"round {number}"


def check_logits(which: Case, run: Run, found: Replay, what: str = "draft_logits") -> int:
    """Every recorded row of draft logits; returns how many rounds were compared."""
    compared = 0
    for number in range(len(run["rounds"])):
        expected = which.logits.get(f"{run['name']}.round{number}.{what}")
        if expected is not None:
            seen = found.recorder.seen(number)
            torch.testing.assert_close(seen, expected, atol=TOLERANCE, rtol=0, msg=f"round {number}")
            compared += 1
    return compared
