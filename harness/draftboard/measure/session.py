"""A run's measuring loop: arms interleaved turn by turn, each reply on disk before the next begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from draftboard.errors import UserError
from draftboard.measure.arms import LiveArm, describe
from draftboard.measure.clock import Clock
from draftboard.measure.curve import verify_curve
from draftboard.measure.decode import Reply, decode
from draftboard.measure.events import Begun, Failed, Replied, Send
from draftboard.measure.opening import Opened
from draftboard.measure.out_of_memory import out_of_memory
from draftboard.measure.sampling import Randomness
from draftboard.measure.turns import TurnClock, Turnstile
from draftboard.record.codec import from_json
from draftboard.record.ids import digest
from draftboard.record.journal import Journal
from draftboard.record.records import Trace
from draftboard.record.tasks import Prompt

WARMUP_TOKENS = 16
"""Length of the uncounted reply that each arm gives before its first counted one."""

Place = tuple[str, str, int, int]
"""Arm id, prompt id, turn, repeat: where one reply belongs."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply to be given: where it stands and the ids it answers."""

    prompt: Prompt
    index: int
    repeat: int
    ids: tuple[int, ...]


class Session:
    """Measures what is not yet in the journal."""

    def __init__(self, opened: Opened, journal: Journal, send: Send) -> None:
        self.opened, self.journal, self.send = opened, journal, send
        self.clock = Clock(opened.target.device)
        self.done = replies_in(journal)

    @property
    def missing(self) -> int:
        """Replies still to come."""
        turns = sum(len(prompt.turns) for prompt in self.opened.prompts)
        alive = {self.opened.arms[index].id for index in self._alive()}
        return turns * self.opened.plan.repeats * len(alive) - sum(place[0] in alive for place in self.done)

    def measure(self) -> None:
        """Warms every arm up and runs all prompts."""
        self._warm_up()
        with self._turns():
            for prompt in self.opened.prompts:
                for repeat in range(self.opened.plan.repeats):
                    self._converse(prompt, repeat)

    @contextmanager
    def _turns(self) -> Iterator[None]:
        """Replies given round by round with another run, where somebody arranges that."""
        turnstile, alone = Turnstile(), self.clock
        if not turnstile.open:
            self.clock = TurnClock(self.opened.target.device, turnstile)
        yield
        turnstile.wait()
        self.clock = alone

    def turns(self) -> list[Turn]:
        """Every turn as it was put to the arms, once."""
        prompts = {prompt.id: prompt for prompt in self.opened.prompts}
        asked = (trace for place, trace in self.done.items() if place[0] == self.opened.baseline.id)
        return [Turn(prompts[t.prompt_id], t.turn, 0, t.prompt_ids) for t in asked if t.repeat == 0]

    def _warm_up(self) -> None:
        """Runs what a first time makes slow: every width of a verification, and each arm's own code."""
        prompt, plan = self.opened.prompts[0], self.opened.plan
        turn = Turn(prompt, 0, 0, tuple(self.opened.template.ids(prompt.turns[:1], [])))
        if plan.warmup:
            verify_curve(self.opened.target, len(turn.ids), self._widths(), repeats=1)
        for _ in range(plan.warmup):
            for index in self._alive():
                self.send(Begun(index))
                self._try(index, turn, min(WARMUP_TOKENS, plan.max_new_tokens))

    def _widths(self) -> list[int]:
        """Rows of the forwards to come: one, up to the widest arm's guesses and the anchor."""
        drafters = (self.opened.arms[index].drafter for index in self._alive())
        return list(range(1, max(one.num_speculative_tokens for one in drafters if one is not None) + 2))

    def _converse(self, prompt: Prompt, repeat: int) -> None:
        """All turns of one prompt. The history is always the baseline's."""
        replies: list[str] = []
        for index in range(len(prompt.turns)):
            ids = self.opened.template.ids(prompt.turns[: index + 1], replies)
            turn = Turn(prompt, index, repeat, tuple(ids))
            order = self._alive()
            random.Random(f"{self.opened.plan.sampling.seed} {prompt.id} {index} {repeat}").shuffle(order)
            for arm in order:
                self._measure(arm, turn)
            own = self.done[self.opened.baseline.id, prompt.id, index, repeat]
            replies.append(self.opened.template.text(own.token_ids))

    def _measure(self, index: int, turn: Turn) -> None:
        """One counted reply, unless the journal has it already."""
        arm = self.opened.arms[index]
        place = (arm.id, turn.prompt.id, turn.index, turn.repeat)
        if place in self.done:
            return
        self.send(Begun(index))
        self.opened.memory.begin()
        reply = self._try(index, turn, self.opened.plan.max_new_tokens)
        if reply is None:
            return
        trace = self.done[place] = self._trace(turn, reply)
        memory = {"memory": self.opened.memory.read(), "memory_missing": self.opened.memory.missing}
        self.journal.append("trace", {"arm": arm.id, "trace": trace, **memory})
        self.send(Replied(index, trace))

    def _try(self, index: int, turn: Turn, max_new_tokens: int) -> Reply | None:
        """One reply; an error takes the arm out and is its row, and the other arms go on."""
        try:
            return self.reply(self.opened.arms[index], turn, max_new_tokens)
        except Exception as error:
            self._take_out(index, error)
            return None

    def _take_out(self, index: int, error: Exception) -> None:
        """Notes an arm's end. Without the baseline nothing can be compared, so its end is the run's."""
        arm, text = self.opened.arms[index], describe(error)
        if arm is self.opened.baseline:
            raise UserError(f"the baseline failed, and nothing can be compared without it: {text}") from error
        self.opened.arms[index] = replace(arm, error=text, drafter=None)
        self.journal.append("failed", {"index": index, "error": text})
        self.send(Failed(index, text))
        if isinstance(error, torch.AcceleratorError) or out_of_memory(error):
            raise SystemExit("the device's state is lost; the next worker process goes on")

    def reply(self, arm: LiveArm, turn: Turn, max_new_tokens: int) -> Reply:
        """One reply, whoever asks for it; nothing is noted."""
        assert arm.drafter is not None
        target, sampler = self.opened.target, self.opened.sampler
        ids = torch.tensor(turn.ids, device=target.device)
        seed = digest([self.opened.plan.sampling.seed, turn.prompt.id, turn.index, turn.repeat])
        sampler.restart(Randomness(int(seed, 16), target.device))
        return decode(target, arm.drafter, ids, sampler, self.clock, max_new_tokens=max_new_tokens)

    def _trace(self, turn: Turn, reply: Reply) -> Trace:
        return Trace(
            prompt_id=turn.prompt.id,
            category=turn.prompt.category,
            turn=turn.index,
            repeat=turn.repeat,
            prompt_ids=turn.ids,
            token_ids=reply.token_ids,
            pieces=self.opened.template.pieces(reply.token_ids),
            rounds=reply.rounds,
            prefill_ms=reply.prefill_ms,
            draft_prefill_ms=reply.draft_prefill_ms,
            decode_ms=reply.decode_ms,
            wall_ms=reply.wall_ms,
            stop=reply.stop,
        )

    def _alive(self) -> list[int]:
        return [index for index, arm in enumerate(self.opened.arms) if arm.error is None]


def replies_in(journal: Journal) -> dict[Place, Trace]:
    """The replies that are already measured."""
    found: dict[Place, Trace] = {}
    for entry in journal.read():
        if entry.kind == "trace":
            trace = from_json(Trace, entry.data["trace"], str(journal.path))
            found[entry.data["arm"], trace.prompt_id, trace.turn, trace.repeat] = trace
    return found
