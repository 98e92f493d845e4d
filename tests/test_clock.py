"""Where the time of a reply goes: a scripted counter, moved by whoever is meant to have taken the time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from draftboard.drafter import Draft
from draftboard.measure import clock as clock_module
from draftboard.measure.clock import Clock, Span
from draftboard.measure.decode import Reply, decode
from draftboard.measure.sampling import Randomness, Sampler, Verdict
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from scripted import Scripted, always
from tiny import tiny_model

CPU = torch.device("cpu")
COST = {
    "begin": 1000,
    "prefill": 50,
    "draft_prefill": 7,
    "draft": 3,
    "verify": 20,
    "truncate": 1,
    "commit": 2,
}
"""Milliseconds that each part takes on the scripted counter."""


class Counter:
    """Stands for the `time` module: moves only when told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def perf_counter(self) -> float:
        return self.seconds

    def take(self, ms: float) -> None:
        self.seconds += ms / 1e3


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    monkeypatch.setattr(clock_module, "time", counter)
    return counter


class SlowTarget(TargetModel):
    """A tiny target whose calls take their scripted time."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(tiny_model(), id="slow", max_context=64, stop_ids=frozenset())
        self.counter = counter

    def begin(self, taps: tuple[int, ...]) -> None:
        self.counter.take(COST["begin"])
        super().begin(taps)

    def prefill(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.counter.take(COST["prefill"])
        return super().prefill(ids)

    def extend(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.counter.take(COST["verify"])
        return super().extend(ids)

    def truncate(self, length: int) -> None:
        self.counter.take(COST["truncate"])
        super().truncate(length)


class SlowDrafter(Scripted):
    """A drafter whose calls take their scripted time; it never guesses right."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(always(95, 95))
        self.counter = counter

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        self.counter.take(COST["draft_prefill"])
        super().prefill(tokens, features)

    def propose(self, limit: int) -> Draft:
        self.counter.take(COST["draft"])
        return super().propose(limit)

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        self.counter.take(COST["commit"])
        super().commit(tokens, features)

    def release(self) -> None:
        self.counter.take(500)
        super().release()


def reply_of(counter: Counter, clock: Clock, count: int = 6, sampler: type[Sampler] = Sampler) -> Reply:
    return decode(
        SlowTarget(counter),
        SlowDrafter(counter),
        torch.tensor([1, 2, 3]),
        sampler(Sampling(), Randomness(0, CPU)),
        clock,
        max_new_tokens=count,
    )


def spans_ms(reply: Reply) -> float:
    return sum(one.draft_ms + one.verify_ms + one.commit_ms for one in reply.rounds)


def test_every_part_is_in_its_own_span_and_they_add_up_to_the_wall(counter: Counter) -> None:
    reply = reply_of(counter, Clock(CPU))
    assert len(reply.rounds) == 5
    assert (reply.prefill_ms, reply.draft_prefill_ms) == (50, 7)
    assert set(reply.rounds.draft_ms) == {3}
    assert set(reply.rounds.verify_ms) == {20 + 1}
    assert set(reply.rounds.commit_ms) == {2}
    assert reply.decode_ms == spans_ms(reply) == 5 * (3 + 21 + 2)
    assert reply.wall_ms == reply.prefill_ms + reply.draft_prefill_ms + reply.decode_ms


def test_choosing_the_token_belongs_to_the_verification(counter: Counter) -> None:
    class SlowSampler(Sampler):
        def verify(self, logits: Tensor, draft: Draft) -> Verdict:
            counter.take(11)
            return super().verify(logits, draft)

        def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
            counter.take(13)
            return super().draw(logits)

    reply = reply_of(counter, Clock(CPU), sampler=SlowSampler)
    assert set(reply.rounds.verify_ms) == {20 + 1 + 11}
    assert reply.prefill_ms == 50 + 13
    assert reply.decode_ms == spans_ms(reply)


@pytest.mark.parametrize("before", ["draft", "verify", "commit"])
def test_time_between_two_spans_is_nobodys_and_shows_as_other(counter: Counter, before: str) -> None:
    class Injected(Clock):
        def span(self, name: str) -> Span:
            if name == before:
                counter.take(5)
            return super().span(name)

    plain, injected = reply_of(counter, Clock(CPU)), reply_of(counter, Injected(CPU))
    assert injected.rounds == plain.rounds
    assert plain.decode_ms - spans_ms(plain) == 0
    assert injected.decode_ms - spans_ms(injected) == 5 * len(injected.rounds)
    assert injected.wall_ms - plain.wall_ms == 5 * len(injected.rounds)


def test_a_reply_of_one_token_has_prefills_and_no_decoding(counter: Counter) -> None:
    reply = reply_of(counter, Clock(CPU), count=1)
    assert (reply.prefill_ms, reply.draft_prefill_ms, reply.decode_ms, reply.wall_ms) == (50, 7, 0, 57)
    assert len(reply.rounds) == 0


def test_a_span_is_read_in_milliseconds_even_after_an_error(counter: Counter) -> None:
    with pytest.raises(KeyError), Clock(CPU).span("any") as span:
        counter.take(1.25)
        raise KeyError
    counter.take(99)
    assert span.ms == pytest.approx(1.25)


class Event:
    """A CUDA event of a device that the test plays."""

    def __init__(self, log: list[str], enable_timing: bool) -> None:
        assert enable_timing
        self.log = log

    def record(self) -> None:
        self.log.append("record")

    def elapsed_time(self, end: Event) -> float:
        self.log.append("read")
        return 1.5


def test_on_a_gpu_spans_wait_for_nothing_and_the_wall_waits_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def event(**options: Any) -> Event:
        return Event(log, **options)

    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    clock = Clock(torch.device("cuda"))
    with clock.span("draft") as span:
        log.append("work")
    assert log == ["record", "work", "record"]
    assert span.ms == 1.5
    clock.now_ms()
    assert log[3:] == ["read", "synchronize"]


def test_a_gpu_reply_waits_for_the_device_only_at_its_ends(
    monkeypatch: pytest.MonkeyPatch, counter: Counter
) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: Event(log, **options))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    reply = reply_of(counter, Clock(torch.device("cuda")))
    whole, one = ["synchronize"], ["record", "record"]
    assert log == whole + 2 * one + whole + 3 * 5 * one + whole + ["read"] * (2 + 3 * 5)
    assert set(reply.rounds.verify_ms) == {1.5}
