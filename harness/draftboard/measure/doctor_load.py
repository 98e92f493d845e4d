"""The doctor under load: memory's speed, the target's, and what telemetry tells meanwhile, field by field."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from draftboard.errors import UserError
from draftboard.measure import doctor_decode
from draftboard.measure.arms import describe
from draftboard.measure.bandwidth import CACHES, Bandwidth, measure_bandwidth
from draftboard.measure.compiled import kernels_missing
from draftboard.measure.curve import FINE_ROWS, verify_curve
from draftboard.measure.doctor import Line, Section, State, Subject
from draftboard.measure.loading import dtype_name, load_target, position_limit
from draftboard.measure.machine import BusyMeter, gpus_of
from draftboard.measure.target import TargetModel
from draftboard.measure.telemetry.request import Request
from draftboard.measure.telemetry.sampler import NullSampler, Sampler, SamplerError, open_sampler
from draftboard.record.telemetry import Series, Status, Window

_REPEATS = 11

ADVICE: dict[Status, str] = {
    "no_permission": "ask the administrator: the driver keeps this from users (NVIDIA: RmProfilingAdminOnly)",
    "error": "mend what the message says; until then this column stays empty",
    "not_sampled": "nothing came within this short window; a run's is longer",
}
"""What to do about a field that is not told. A device that cannot tell it leaves nothing to do."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The target and its times in milliseconds, beside what the memory can do."""

    model: TargetModel
    bandwidth: Bandwidth
    verify_ms: dict[int, float]
    """Time of one forward by its number of rows."""
    disturbed: tuple[str, ...]

    @property
    def floor_ms(self) -> float | None:
        """The least time a token can take: every weight that it needs read once; None where it is not known
        which those are."""
        read = self.model.token_bytes
        return None if read is None else read / self.bandwidth.best * 1e3


def sections(subject: Subject) -> Iterator[Section]:
    """Loads the target, times it under sampling, and tells what was told."""
    sampler = _open(subject)
    try:
        speed, telemetry = _watched(sampler, lambda: _measure(subject))
    finally:
        sampler.close()
    yield from telemetry
    yield Section("speed", tuple(_speed(subject, speed)))
    yield from doctor_decode.sections(subject, speed.model, speed.verify_ms)


def _open(subject: Subject) -> Sampler | NullSampler:
    try:
        return open_sampler(Request(os.getpid(), gpus_of(subject.device)))
    except Exception as error:
        return NullSampler(describe(error))


def _watched(sampler: Sampler | NullSampler, work: Callable[[], Speed]) -> tuple[Speed, tuple[Section, ...]]:
    """What `work` finds, and the telemetry meanwhile; whatever fails of the latter is a line of it."""
    try:
        sampler.begin()
    except Exception as error:
        return work(), (_no_telemetry(error),)
    speed = work()
    try:
        return speed, tuple(_telemetry(sampler.end(), sampler.software))
    except Exception as error:
        return speed, (_no_telemetry(error),)


def _room(subject: Subject) -> int:
    """The positions that the curve needs. Raises UserError where the target has fewer."""
    room, limit = subject.context + max(FINE_ROWS), position_limit(subject.target, subject.revision)
    if limit is not None and room > limit:
        raise UserError(
            f"--context {subject.context} and the {max(FINE_ROWS)} rows that are verified after it need"
            f" {room} positions, more than the target's {limit};"
            f" use at most --context {limit - max(FINE_ROWS)}"
        )
    return room


def _measure(subject: Subject) -> Speed:
    room = _room(subject)
    model = load_target(
        subject.target,
        dtype=subject.dtype,
        device=subject.device,
        revision=subject.revision,
        max_context=room,
    )
    busy = BusyMeter()
    bandwidth = measure_bandwidth(subject.device, subject.dtype)
    curve = verify_curve(model, subject.context, FINE_ROWS, _REPEATS)
    return Speed(model, bandwidth, curve, busy.reasons())


def _no_telemetry(error: Exception) -> Section:
    why = str(error) if isinstance(error, SamplerError) else describe(error)
    return Section("telemetry", (Line("sampler", why, "warning", ADVICE["error"]),))


def _telemetry(window: Window, software: dict[str, str]) -> Iterator[Section]:
    cost = window.sampler_cpu_s
    share = "unknown" if cost is None else f"{cost / window.seconds:.1%} of a core"
    about = [Line("window", f"{window.seconds:.1f} s, one poll each {window.period_s:g} s, cost {share}")]
    about += [Line(name.replace("_", " "), version) for name, version in software.items()]
    yield Section("telemetry", tuple(about))
    for device in window.devices:
        notes = [Line("note", note, "unknown") for note in device.notes]
        fields = [_field(name, series) for name, series in device.series.items()]
        yield Section(f"telemetry of {device.name} ({device.kind})", (*notes, *fields))


def _field(name: str, series: Series) -> Line:
    if series.status == "ok":
        middle = statistics.median(series.values)
        return Line(name, f"{middle:.6g} {series.unit}, {len(series.values)} samples, {series.source}")
    state: State = "unknown" if series.status == "unsupported" else "warning"
    words = series.status.replace("_", " ")
    return Line(
        name, f"{words}: {series.detail}" if series.detail else words, state, ADVICE.get(series.status)
    )


def _speed(subject: Subject, speed: Speed) -> Iterator[Line]:
    model, plain_ms = speed.model, speed.verify_ms[1]
    size = f"{model.weight_bytes / 1e6:.0f} MB in {dtype_name(subject.dtype)}"
    yield Line("target", f"{model.id}, {size}, {model.forward.name} forward")
    if model.forward.name == "fused" and model.device.type == "cpu":
        why = (
            kernels_missing() or "its sizes are no multiples of 16, or its dtype neither float32 nor bfloat16"
        )
        yield Line("not compiled", why, "warning", "decoding goes operator by operator, which is slower")
    yield bandwidth_line(speed.bandwidth)
    if speed.floor_ms is None:
        yield Line("floor", "a token reads some experts only, and which is not known", "unknown")
        yield Line("measured", f"{plain_ms:.3g} ms a token")
    else:
        yield Line("floor", f"{speed.floor_ms:.3g} ms a token (every weight that it needs read once)")
        share = speed.floor_ms / plain_ms
        yield Line("measured", f"{plain_ms:.3g} ms a token: {share:.0%} of the floor's speed")
    for reason in speed.disturbed:
        yield Line("disturbed", reason, "warning", "repeat on a quiet machine")


def bandwidth_line(found: Bandwidth) -> Line:
    """The better of the two ways of reading, both figures, and over how much memory; a warning where that
    was too little to outdo the cache."""
    ways = f"read {found.read / 1e9:.1f}, product {found.product / 1e9:.1f}"
    size = f"{found.size / 1e6:.0f} MB"
    if found.caches is None:
        where = f"{size}, last-level cache not told"
        return Line("bandwidth", f"{found.best / 1e9:.1f} GB/s ({ways}; {where})", "unknown")
    value = f"{found.best / 1e9:.1f} GB/s ({ways}; {size}, {found.caches:.1f} last-level caches)"
    if not found.outdoes_cache:
        return Line(
            "bandwidth", value, "warning", f"free memory for {CACHES} caches, or the floor is too low"
        )
    return Line("bandwidth", value)
