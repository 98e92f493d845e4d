"""The charts of the pages. Each says in words what it shows, and no chart holds a figure that no text has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from draftboard.judge.positions import Position
from draftboard.judge.prompts import ContextBin, PromptFigures
from draftboard.judge.terms import Terms
from draftboard.judge.worth import factor
from draftboard.record.records import Rounds
from draftboard.show import words
from draftboard.show.web.svg import Plot, tag, text

ROUND_PARTS = (("draft", "draft"), ("verify", "verify"), ("other", "other"))


def whisker(value: float, lo: float | None, hi: float | None, top: float) -> Markup:
    """A factor and its interval on a line from 0 to `top`, with a mark at 1; its words stand beside it."""
    width, tone = 84.0, "loss" if value < 1 else "gain" if lo is not None and lo > 1 else "flat"
    scale = (width - 4) / max(top, 1.0)
    one = 2 + scale
    parts = [tag("line", class_="rule", x1=one, x2=one, y1=0, y2=12)]
    if lo is not None and hi is not None:
        parts.append(tag("line", class_=f"span {tone}", x1=2 + lo * scale, x2=2 + hi * scale, y1=6, y2=6))
    parts.append(tag("circle", class_=tone, cx=2 + value * scale, cy=6, r=3))
    return tag("svg", *parts, class_="whisker", viewBox=f"0 0 {width:g} 12", aria_hidden="true")


def terms_bars(terms: Terms) -> Markup:
    """What the tokens of one round cost plain decoding, above what the round costs. A part below zero is
    drawn back from the end of those before it."""
    plain = terms.acceptance_length * terms.t_target_ms
    times = (terms.t_draft_ms, terms.t_verify_ms, terms.t_other_ms)
    width, left = 620.0, 108.0
    scale = (width - left - 70) / max(plain, sum(ms for ms in times if ms > 0))
    parts = [text("plain decoding", left - 8, 21, "end"), text("one round", left - 8, 57, "end")]
    parts += [
        _segment("target", left, 6, plain * scale, f"{terms.acceptance_length:.2f} tokens, {plain:.2f} ms")
    ]
    at = left
    for (class_, name), ms in zip(ROUND_PARTS, times, strict=True):
        parts.append(_segment(class_, at + min(ms, 0.0) * scale, 42, abs(ms) * scale, f"{name} {ms:.2f} ms"))
        at += ms * scale
    ends = ((left + plain * scale, 21, plain), (at, 57, sum(times)))
    parts += [text(f"{ms:.1f} ms", x + 6, y, "start") for x, y, ms in ends]
    tokens = f"{terms.acceptance_length:.2f} tokens"
    label = f"{tokens} take {plain:.1f} ms by plain decoding and {sum(times):.1f} ms in a round"
    return tag("svg", *parts, class_="plot", role="img", aria_label=label, viewBox=f"0 0 {width:g} 72")


def _segment(class_: str, x: float, y: float, width: float, title: str) -> Markup:
    return tag("rect", tag("title", title), class_=class_, x=x, y=y, width=max(width, 0.5), height=24)


def positions_chart(positions: Sequence[Position]) -> Markup:
    """Acceptance by the place of a guess: of all drafts as bars, of those tested as a line."""
    plot = Plot((0.4, len(positions) + 0.6), (0.0, 1.0))
    bars = (
        plot.bar(p.position, p.unconditional or 0.0, 0.6, f"place {p.position}: {p.unconditional:.1%}", "a")
        for p in positions
        if p.unconditional is not None
    )
    tested = [(p.position, p.conditional) for p in positions if p.conditional is not None]
    dots = (plot.dot(x, y, f"place {x}: {y:.1%} of those tested") for x, y in tested)
    named = [(p.position, str(p.position)) for p in positions]
    return plot.draw(
        *bars,
        plot.line(tested, "line"),
        *dots,
        label="Share of guesses accepted, by their place in the draft",
        x_title="place of the guess in the draft",
        y_title="accepted",
        x_ticks=named,
    )


def prompts_chart(prompts: Sequence[PromptFigures], links: Mapping[str, str]) -> Markup:
    """A bar for each prompt from 1 to its speedup, in rising order; each leads to its reply."""
    found = ((p.speedup, p) for p in prompts if p.speedup is not None)
    known = sorted(found, key=lambda pair: pair[0])
    speedups = [speedup for speedup, _ in known]
    plot = Plot((-0.5, len(known) - 0.5), (min(0.5, *speedups), max(1.5, *speedups)))
    reach = f"from {factor(speedups[0])} to {factor(speedups[-1])}"
    bars = (
        tag("a", _prompt_bar(plot, i, p, speedup), href=links.get(p.prompt_id), aria_label=p.prompt_id)
        for i, (speedup, p) in enumerate(known)
    )
    return plot.draw(
        *bars,
        plot.rule(1.0),
        label=f"Speedup of each of {len(known)} prompts, {reach}",
        x_title="prompts, slowest first",
        y_title="speedup",
        x_ticks=[],
        role="group",
    )


def _prompt_bar(plot: Plot, place: int, prompt: PromptFigures, speedup: float) -> Markup:
    length = words.figure(prompt.acceptance_length, "tokens/round")
    title = f"{prompt.prompt_id}: {factor(speedup)} at {length} tokens a round"
    return plot.bar(place, speedup, 0.7, title, "gain" if speedup >= 1 else "loss", base=1.0)


def context_chart(bins: Sequence[ContextBin]) -> Markup:
    """Acceptance length against the length of the context."""
    points = [((b.first + b.last) / 2, b.acceptance_length) for b in bins]
    plot = Plot((float(bins[0].first), float(bins[-1].last)), (0.0, max(y for _, y in points) * 1.15))
    dots = (
        plot.dot(x, y, f"{b.first} to {b.last} tokens: {y:.2f} over {b.rounds} rounds")
        for (x, y), b in zip(points, bins, strict=True)
    )
    return plot.draw(
        plot.line(points, "line"),
        *dots,
        label="Acceptance length against the number of tokens in the context",
        x_title="tokens of prompt and reply before the round",
        y_title="E[L]",
    )


def verify_chart(verify_ms: Mapping[str, float], rows: int | None) -> Markup:
    """Time of a forward by its number of rows over that of one row; the rows of this K are marked."""
    timed = sorted((int(name), ms) for name, ms in verify_ms.items())
    one = timed[0][1]
    points = [(float(i), ms / one) for i, (_, ms) in enumerate(timed)]
    plot = Plot((-0.3, len(timed) - 0.7), (0.0, max(y for _, y in points) * 1.15))
    dots = (
        plot.dot(x, y, f"{m} rows: {ms:.2f} ms", "dot marked" if m == rows else "dot")
        for (x, y), (m, ms) in zip(points, timed, strict=True)
    )
    return plot.draw(
        plot.line(points, "line"),
        *dots,
        label=f"Time of a forward of {timed[0][0]} to {timed[-1][0]} rows over that of {timed[0][0]}",
        x_title="rows of the forward",
        y_title=f"T_verify(m) / T_verify({timed[0][0]})",
        x_ticks=[(float(i), str(m)) for i, (m, _) in enumerate(timed)],
    )


def round_strip(rounds: Rounds) -> Markup:
    """A reply's rounds side by side, the height of each its time, as one path for each part."""
    spans = list(zip(rounds.draft_ms, rounds.verify_ms, rounds.commit_ms, strict=True))
    tallest, height, step = max((sum(span) for span in spans), default=0.0) or 1.0, 48.0, 8
    paths: dict[str, list[str]] = {"draft": [], "verify": [], "other": []}
    for index, span in enumerate(spans):
        base = height
        for name, ms in zip(paths, span, strict=True):
            size = ms / tallest * height
            paths[name].append(f"M{index * step} {base:.1f}v-{size:.1f}h6v{size:.1f}z")
            base -= size
    drawn = (tag("path", class_=name, d="".join(found)) for name, found in paths.items())
    width = max(len(spans), 1) * step
    label = f"Time of each of {len(spans)} rounds, the longest {tallest:.1f} ms"
    box = f"0 0 {width} {height:g}"
    return tag("svg", *drawn, class_="strip", role="img", aria_label=label, viewBox=box, width=width)
