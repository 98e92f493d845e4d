"""Why a speedup is what it is, in the terminal: its terms, what would change them, and the tile rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftboard.errors import unknown
from draftboard.judge.explain import TILE_ROWS, WhatIf, group_size, start_d, tile
from draftboard.judge.terms import Prediction, Terms
from draftboard.judge.worth import factor
from draftboard.record.store import Store
from draftboard.show import layout, settings, words
from draftboard.show.collect import Entry, RunRows, current, read_all

TERM_HEADS = ("E[L]", "T_target", "T_draft", "T_verify", "T_other", "speedup")
FORMULA = "speedup = E[L] * T_target / (T_draft + T_verify + T_other), times in ms"


def show(
    store: Store, target: str | None, g: int | None, ks: Sequence[int], tile_rows: int, console: Console
) -> None:
    """Prints the tile rule alone for a given G; else, for each target in the store or the one named, the
    terms of its arms and the tile rule for its G. Raises UserError for a target without results."""
    if g is not None:
        layout.show(console, tile_table(g, ks, tile_rows))
        return
    found = read_all(store)
    targets = dict.fromkeys(one.run.target.id for one in found)
    if target is not None and target not in targets:
        raise unknown("target", target, targets, str(store.root))
    for name in [target] if target else targets:
        layout.show(console, _explain([one for one in found if one.run.target.id == name], ks, tile_rows))


def _explain(runs: Sequence[RunRows], ks: Sequence[int], tile_rows: int) -> RenderableType:
    entries = {(one.row.run, one.row.arm): one for run in runs for one in run.entries}
    rows = current(row for one in runs for row in one.rows)
    newest = runs[-1].run
    asked = ks or sorted({row.k for row in rows if row.k is not None})
    rule = tile_table(group_size(newest.target), asked, tile_rows, newest.verify_ms)
    parts = (
        part
        for title, found in settings.grouped(rows)
        for part in _titled(title, [entries[row.run, row.arm] for row in found])
    )
    about = f"Tile rule for {newest.target.id}, verification timed in run {newest.id}"
    return Group(FORMULA, *parts, Text(f"\n{words.visible(about)}"), rule)


def _titled(title: str, entries: Sequence[Entry]) -> tuple[RenderableType, ...]:
    return Text(f"\n{words.visible(title)}", "bold"), terms_table(entries)


def terms_table(entries: Sequence[Entry]) -> Table:
    """The terms of every arm that has them, its break-even length, and the speedups that changes of its
    terms would give; the arms are those of one setting."""
    asked = ("half the draft cost", "one more token per round")
    table = layout.new_table(
        ("task", "drafter", *TERM_HEADS, "break-even", *asked, "K - 1", "K + 1"), "ll" + "r" * 11
    )
    rows = [entry.row for entry in entries]
    names = words.names(rows)
    for entry in entries:
        if entry.changes:
            said = (words.task_name(entry.row, rows), names[entry.row.arm])
            cells = (*_cells(entry.changes, asked), *_beside(entry))
            table.add_row(*(Text(words.visible(text)) for text in said), *cells)
    return table


def _cells(changes: Sequence[WhatIf], asked: Sequence[str]) -> tuple[str, ...]:
    terms, changed = changes[0].terms, {one.change: one.speedup for one in changes}
    break_even = words.figure(terms.break_even, "tokens/round")
    return (*_term_cells(terms), break_even, *(words.figure(changed[name], "x") for name in asked))


def _beside(entry: Entry) -> tuple[str, str]:
    """The estimates for K - 1 and K + 1; dashes where there are none."""
    found = {one.k: one.speedup for one in entry.changes if one.k is not None}
    k = entry.row.k or 0
    return words.figure(found.get(k - 1), "x"), words.figure(found.get(k + 1), "x")


def _term_cells(t: Terms) -> tuple[str, ...]:
    times = (words.figure(ms, "ms") for ms in (t.t_target_ms, t.t_draft_ms, t.t_verify_ms, t.t_other_ms))
    return words.figure(t.acceptance_length, "tokens/round"), *times, words.figure(t.speedup, "x")


WHAT_IF_HEADS = ("what if", *TERM_HEADS, "gain")


def what_if_cells(one: WhatIf) -> tuple[str, ...]:
    """A change of the terms in words, with its gain over the measured speedup."""
    return one.change, *_term_cells(one.terms), f"{one.gain - 1:+z.0%}"


def break_even_words(terms: Terms) -> str:
    """The acceptance length at which a drafter neither gains nor costs."""
    return f"The speedup is 1 at {terms.break_even:.2f} tokens per round."


def what_if_table(changes: Sequence[WhatIf]) -> Table:
    """The terms as measured, which come first, and single changes of them."""
    table = layout.new_table(WHAT_IF_HEADS, "l" + "r" * 7)
    for one in changes:
        table.add_row(*what_if_cells(one))
    table.caption = break_even_words(changes[0].terms)
    return table


def prediction_words(tried: Prediction) -> str:
    """What the formula said of prompts it was not fitted on."""
    if tried.predicted is None or tried.measured is None:
        return f"formula on unseen prompts: {tried.missing}"
    return (
        f"formula on unseen prompts: predicted {factor(tried.predicted)}, measured {factor(tried.measured)}, "
        f"residual {tried.residual_pct:+z.1f} %; with their own acceptance length "
        f"{words.figure(tried.predicted_at_own_length, 'x')}, {tried.residual_at_own_length_pct:+z.1f} %"
    )


def tile_words(g: int, tile_rows: int = TILE_ROWS) -> str:
    """The tile rule for G."""
    return (
        f"G = {g} query heads per KV head, tiles of {tile_rows} rows: begin at D = {start_d(g, tile_rows)} "
        f"drafts a round, beyond it keep G(1+D) a multiple of {tile_rows}. The rule is for kernels that "
        "attention dominates: hold it against the measured time of a verification before you trust it."
    )


TILE_HEADS = ("D", "rows", "tiles", "fill", "T_verify(1+D) / T_verify(1)", "")


def tile_lines(
    g: int, drafts: Sequence[int], tile_rows: int = TILE_ROWS, verify_ms: Mapping[str, float] | None = None
) -> list[tuple[str, ...]]:
    """Where to begin for G, its neighbours and the D asked about, beside the measured time of a forward
    with 1 + D rows over that with 1, where there is one; cells for `TILE_HEADS`."""
    begin, measured = start_d(g, tile_rows), verify_ms or {}
    lines: list[tuple[str, ...]] = []
    for d in sorted({max(begin - 1, 0), begin, begin + 1, *drafts}):
        found = tile(g, d, tile_rows)
        mark = (", plain decoding" if d == 0 else "") + (", begin here" if d == begin else "")
        cost = _relative(measured.get(str(1 + d)), measured.get("1"))
        fill = words.figure(found.fill, "")
        lines.append((str(d), str(found.rows), str(found.tiles), fill, cost, f"{found.verdict}{mark}"))
    return lines


def tile_table(
    g: int,
    drafts: Sequence[int] = (),
    tile_rows: int = TILE_ROWS,
    verify_ms: Mapping[str, float] | None = None,
) -> RenderableType:
    """The tile rule for G."""
    table = layout.new_table(TILE_HEADS, "rrrrrl")
    for line in tile_lines(g, drafts, tile_rows, verify_ms):
        table.add_row(*line)
    return Group(Text(tile_words(g, tile_rows)), table)


def _relative(ms: float | None, one_ms: float | None) -> str:
    return words.figure(ms / one_ms if ms is not None and one_ms else None, "x")
