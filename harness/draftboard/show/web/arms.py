"""The page of one arm in one run, as plain data: its figures, where they come from and how they spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftboard.judge.explain import group_size
from draftboard.judge.lossless import verdict_of
from draftboard.judge.metrics import METRICS
from draftboard.judge.positions import by_position
from draftboard.judge.prompts import ContextBin, PromptFigures, by_context, by_prompt
from draftboard.judge.sample import Sample, take_sample
from draftboard.judge.summary import Row
from draftboard.record.records import Arm, Claim, RunRecord, Training
from draftboard.show import explanation, memory, published, settings, words
from draftboard.show.collect import Entry
from draftboard.show.trace import divergence_lines
from draftboard.show.web import badges, charts, hardware, viewer
from draftboard.show.web.boards import environment
from draftboard.show.web.page import Fact, Section, figure, said

FEW = 5
"""Prompts named as the best and as the worst."""


NO_INTERVAL = "no interval is reckoned for a mean or percentile over single replies"


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of the arm; `missing` says why it or its interval is unknown."""

    name: str
    title: str
    fact: Fact
    interval: str
    missing: str


@dataclass(frozen=True, slots=True)
class PromptLine:
    """A prompt of the distribution, with the way to its reply."""

    name: str
    category: str
    length: str
    speedup: str
    link: str


@dataclass(frozen=True, slots=True)
class ArmPage:
    """Everything about one arm in one run."""

    title: str
    row: Row
    setting: str
    command: str
    record: str
    baseline: bool
    lossless: Fact
    reasons: tuple[str, ...]
    words: tuple[tuple[str, Fact], ...]
    environment: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    published: tuple[str, ...]
    terms: Section
    positions: Section
    prompts: Section
    best: tuple[PromptLine, ...]
    worst: tuple[PromptLine, ...]
    context: Section
    divergences: tuple[str, ...]
    tile: Section
    telemetry: Section
    replies: str | None
    badge: str
    trend: str


def make_page(run: RunRecord, arms: Sequence[Arm], arm: Arm, entry: Entry) -> ArmPage:
    """The page of one of a run's arms; links are relative to its own place."""
    baseline = next(one for one in arms if one.id == run.baseline)
    row, sample = entry.row, take_sample(baseline, arm)
    verdict, file = verdict_of(baseline, arm, run.dtype), entry.page.rpartition("/")[2]
    links = viewer.links(arm, f"{file}-replies.html") if viewer.shows(arm) else {}
    prompts = by_prompt(sample)
    ordered = _ordered(prompts, links)
    return ArmPage(
        title=f"{words.arm_name(row)}, {row.task_title}",
        row=row,
        setting=settings.heading(row),
        command=run.command,
        record=f"{entry.page.partition('/')[2]}.json",
        baseline=row.baseline,
        lossless=said(words.lossless_words(row), row.lossless_reason, words.lossless_tone(row)),
        reasons=row.reasons,
        words=(
            *_card_words(row, entry.training),
            ("memory", said(memory.arm_words(run, arms, arm))),
            ("CUDA graphs of the drafter", said(words.graphs(arm))),
        ),
        environment=(*environment(run), *_circumstances(run)),
        figures=tuple(_figures(sample, row)),
        published=() if row.error else tuple(published.remarks(row)),
        terms=_terms(entry),
        positions=_positions(sample),
        prompts=_prompts(prompts, links, row),
        best=ordered[-FEW:][::-1],
        worst=ordered[:FEW],
        context=_context(by_context(sample.replies), sample),
        divergences=tuple(line.strip() for line in divergence_lines(verdict)),
        tile=_tile(run, arm),
        telemetry=hardware.section(run, baseline, arm),
        replies=f"{file}-replies.html" if viewer.shows(arm) else None,
        badge=badges.path(row),
        trend=f"trends.html#{settings.key(row)}-{row.arm}",
    )


def _card_words(row: Row, training: Training | None) -> list[tuple[str, Fact]]:
    card = row.card
    found = [("mechanism", said(card.mechanism)), ("needs", said(card.needs))]
    found += [("when to use", said(card.when_to_use))]
    found += [("training", _claim(card.training_cost))] if card.training_cost else []
    found += [("training", said(words.training(training)))] if row.origin == "trained here" else []
    found += [("claimed", _claim(claim)) for claim in card.claims]
    options = ", ".join(f"{name} = {value}" for name, value in row.options.items())
    return [*found, ("options", said(options)), ("weights", said(_weights(row)))]


def _circumstances(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "memory while loading", memory.loading_words(run)
    yield "CUDA graphs of the target", words.graphs(run.target)
    if run.left_out:
        yield f"prompts {words.LEFT_OUT}", ", ".join(run.left_out)


def _claim(claim: Claim) -> Fact:
    mark = ", second-hand" if claim.second_hand else ""
    return said(f"{claim.text} ({claim.source}{mark})")


def _weights(row: Row) -> str:
    sha = f", sha256 {row.weights_sha256[:12]}" if row.weights_sha256 else ""
    return f"{row.origin}, {row.weight_bytes / 1e6:.1f} MB{sha}" if row.origin else "none"


def _figures(sample: Sample, row: Row) -> list[Figure]:
    made = []
    for metric in METRICS:
        one = metric.of(sample)
        spread = "" if one.lo is None else f"{words.figure(one.lo, metric.unit)}{words.DASH}"
        interval = spread and spread + words.figure(one.hi, metric.unit)
        bare = one.value is not None and one.lo is None
        missing = one.missing or (NO_INTERVAL if bare else "")
        made.append(Figure(metric.name, words.with_unit(metric), figure(row, metric.name), interval, missing))
    return made


def _terms(entry: Entry) -> Section:
    if not entry.changes:
        why = "the baseline is the yardstick" if entry.row.baseline else _first(entry.row.missing)
        return Section(None, (), (), why)
    terms = entry.changes[0].terms
    notes = (explanation.break_even_words(terms), explanation.prediction_words(entry.row.prediction))
    lines = tuple(explanation.what_if_cells(one) for one in entry.changes)
    return Section(charts.terms_bars(terms), lines, notes)


def _first(missing: dict[str, str]) -> str:
    return words.visible(next(iter(missing.values()), "a term is unknown"))


def _positions(sample: Sample) -> Section:
    found = by_position(sample.replies)
    if not found:
        return Section(None, (), (), sample.gaps.get("rounds", "nothing was proposed"))
    lines = tuple(
        (
            *(str(n) for n in (p.position, p.proposed, p.tested, p.accepted)),
            *(words.figure(share, "") for share in (p.unconditional, p.conditional)),
        )
        for p in found
    )
    return Section(charts.positions_chart(found), lines, ())


def _ordered(prompts: Sequence[PromptFigures], links: dict[str, str]) -> tuple[PromptLine, ...]:
    """The prompts with a speedup, slowest first."""
    known = sorted((p.speedup, i, p) for i, p in enumerate(prompts) if p.speedup is not None)
    return tuple(_prompt_line(p, links) for _, _, p in known)


def _prompt_line(p: PromptFigures, links: dict[str, str]) -> PromptLine:
    return PromptLine(
        p.prompt_id,
        p.category,
        words.figure(p.acceptance_length, "tokens/round"),
        words.figure(p.speedup, "x"),
        links.get(p.prompt_id, ""),
    )


def _prompts(prompts: Sequence[PromptFigures], links: dict[str, str], row: Row) -> Section:
    if row.baseline or not any(p.speedup is not None for p in prompts):
        return Section(
            None, (), (), "the yardstick" if row.baseline else row.missing.get("speedup", "unknown")
        )
    return Section(charts.prompts_chart(prompts, links), (), ())


def _context(bins: Sequence[ContextBin], sample: Sample) -> Section:
    if not bins:
        return Section(None, (), (), sample.gaps.get("rounds", "no round was run"))
    lines = tuple(
        (f"{b.first} to {b.last}", str(b.rounds), words.figure(b.acceptance_length, "tokens/round"))
        for b in bins
    )
    return Section(charts.context_chart(bins), lines, ())


def _tile(run: RunRecord, arm: Arm) -> Section:
    g, asked = group_size(run.target), [arm.k] if arm.k is not None else []
    lines = tuple(explanation.tile_lines(g, asked, verify_ms=run.verify_ms))
    rows = None if arm.k is None else arm.k + 1
    chart = charts.verify_chart(run.verify_ms, rows) if len(run.verify_ms) > 1 else None
    return Section(chart, lines, (explanation.tile_words(g),))
