"""The doctor on decoding: one step by operator, the loop's own cost, and the cost of verifying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from draftboard.errors import UserError
from draftboard.measure import plugins
from draftboard.measure.curve import FLAT_LIMIT, flat_until
from draftboard.measure.doctor import Line, Section, Subject
from draftboard.measure.loop_cost import LoopCost, loop_cost
from draftboard.measure.operators import STEPS, Operator, fitted, profile_step
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.step_parts import parts_of
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard.record.suites import load_suite

ROWS = 14
"""Operators that are listed: with the other sections they still fit a screen each."""

_NAME_WIDTH = 56
_TOKENS, _REPEATS = 16, 5


def sections(subject: Subject, model: TargetModel, verify_ms: Mapping[int, float]) -> Iterator[Section]:
    """What decoding with `model` is made of, beside the times of its bare forwards."""
    yield Section(f"T_verify(m) after {subject.context} positions", tuple(curve_lines(verify_ms)))
    yield Section("one decode step by operator", tuple(_step_lines(subject, model, verify_ms[1])))
    yield Section("the loop's own cost", tuple(_loop(subject, model)))


def curve_lines(verify_ms: Mapping[int, float]) -> Iterator[Line]:
    """One line for each measured m, and the m where the flat region ends."""
    for rows, ms in verify_ms.items():
        yield Line(f"{rows} rows", f"{ms:8.3f} ms  {ms / verify_ms[1]:5.2f} x one row")
    last = flat_until(verify_ms)
    beyond = " (the largest measured)" if last == max(verify_ms) else ""
    yield Line(
        "flat until",
        f"m = {last}{beyond}: up to it no measured forward costs over {FLAT_LIMIT:g} x one row",
    )


def _step_lines(subject: Subject, model: TargetModel, step_ms: float) -> Iterator[Line]:
    steps = getattr(model.forward, "steps", None)
    if steps is None:
        return operator_lines(profile_step(model, subject.context), step_ms)
    return part_lines(parts_of(steps, step_ms), step_ms)


def part_lines(found: tuple[Operator, ...], step_ms: float) -> Iterator[Line]:
    """The products of a step with their share of it, and what they leave."""
    for one in found:
        if one.self_ms < 0:
            yield Line(one.name, "not known: timed apart, the products took longer than the step", "unknown")
            continue
        share = f"{one.self_ms / step_ms:6.1%}"
        yield Line(one.name, f"{one.calls:6.4g} calls  {one.self_ms:8.3f} ms  {share}")
    yield Line("all", f"{step_ms:.3f} ms a step, one call of compiled code; its products are timed apart")


def operator_lines(found: tuple[Operator, ...], step_ms: float) -> Iterator[Line]:
    """The operators with calls and self time of one step and their share of all self time."""
    total = sum(one.self_ms for one in found)
    for one in fitted(found, ROWS):
        share = f"{one.self_ms / total:6.1%}" if total else "unknown"
        yield Line(_short(one.name), f"{one.calls:6.4g} calls  {one.self_ms:8.3f} ms  {share}")
    yield Line(
        "all",
        f"{total:.3f} ms of self time a step, mean of {STEPS}, profiler's cost included; without it a step"
        f" takes {step_ms:.3f} ms",
    )


def loop_lines(name: str, cost: LoopCost) -> Iterator[Line]:
    """The whole loop, the forwards in it, and the difference."""
    yield Line(f"{name}, K=0 through the speculative path", f"{cost.loop_ms:.3f} ms a token")
    yield Line("bare forward", f"{cost.bare_ms:.3f} ms a token")
    yield Line("the engine's tax", f"{cost.tax_ms:+z.3f} ms a token, {cost.tax:+z.1%} of the bare forward")


def _loop(subject: Subject, model: TargetModel) -> Iterator[Line]:
    """The baseline of a suite is the drafter that proposes nothing; no module is named here."""
    try:
        suite = load_suite(subject.suite)
        module = plugins.load(suite.baseline, suite.plugins)
    except UserError as error:
        yield Line("not measured", str(error), "unknown")
        return
    sampler = Sampler(Sampling(), Randomness(0, model.device))
    with torch.inference_mode():
        drafter = module.build(model, sampler)
    model.stop_ids = frozenset()  # the target is the doctor's own, and every reply has to go the whole way
    cost = loop_cost(model, drafter, sampler, subject.context, _TOKENS, _REPEATS)
    yield from loop_lines(suite.baseline, cost)


def _short(name: str) -> str:
    """A kernel's name may be a page of template parameters."""
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
