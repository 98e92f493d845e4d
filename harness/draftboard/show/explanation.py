"""Why a speedup is what it is, in the terminal: the four terms, what would change them, and the tile rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftboard.errors import unknown
from draftboard.judge.explain import TILE_ROWS, group_size, start_d, tile, what_if
from draftboard.judge.summary import Row
from draftboard.judge.terms import Terms
from draftboard.record.store import Store
from draftboard.show import layout, settings, words
from draftboard.show.collect import RunRows, current, read_all

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
    rows = current(row for one in runs for row in one.rows)
    newest = runs[-1].run
    asked = ks or sorted({row.k for row in rows if row.k is not None})
    rule = tile_table(group_size(newest.target), asked, tile_rows, newest.verify_ms)
    parts = (part for title, found in settings.grouped(rows) for part in _titled(title, found))
    about = f"Tile rule for {newest.target.id}, verification timed in run {newest.id}"
    return Group(FORMULA, *parts, Text(f"\n{words.visible(about)}"), rule)


def _titled(title: str, rows: Sequence[Row]) -> tuple[RenderableType, ...]:
    return Text(f"\n{words.visible(title)}", "bold"), terms_table(rows)


def terms_of(row: Row) -> Terms | None:
    """The terms as a row has them; None where one is unknown."""
    found = (row.acceptance_length, row.t_target_ms, row.t_draft_ms, row.t_verify_ms, row.t_other_ms)
    known = [value for value in found if value is not None]
    return Terms(*known) if len(known) == len(found) else None


def terms_table(rows: Sequence[Row]) -> Table:
    """The terms of every arm that has them, its break-even length and two changes of its terms; the rows are
    those of one setting."""
    heads = ("task", "drafter", *TERM_HEADS, "break-even", "half draft cost", "one more token")
    table = layout.new_table(heads, "ll" + "r" * 9)
    names = words.names(rows)
    for row in rows:
        terms = terms_of(row)
        if terms is not None and not row.baseline:
            said = (words.task_name(row, rows), names[row.arm])
            table.add_row(*(Text(words.visible(text)) for text in said), *_cells(terms))
    return table


def _cells(terms: Terms) -> tuple[str, ...]:
    changed = {one.change: one.speedup for one in what_if(terms)}
    break_even = words.figure(terms.break_even, "tokens/round")
    half, more = changed["half the draft cost"], changed["one more token per round"]
    return (*_term_cells(terms), break_even, words.figure(half, "x"), words.figure(more, "x"))


def _term_cells(t: Terms) -> tuple[str, ...]:
    times = (words.figure(ms, "ms") for ms in (t.t_target_ms, t.t_draft_ms, t.t_verify_ms, t.t_other_ms))
    return words.figure(t.acceptance_length, "tokens/round"), *times, words.figure(t.speedup, "x")


def what_if_table(terms: Terms) -> Table:
    """The terms as measured and single changes of them."""
    table = layout.new_table(("what if", *TERM_HEADS, "gain"), "l" + "r" * 7)
    for one in what_if(terms):
        table.add_row(one.change, *_term_cells(one.terms), f"{one.gain - 1:+.0%}")
    table.caption = f"The speedup is 1 at {terms.break_even:.2f} tokens per round."
    return table


def tile_table(
    g: int,
    drafts: Sequence[int] = (),
    tile_rows: int = TILE_ROWS,
    verify_ms: Mapping[str, float] | None = None,
) -> RenderableType:
    """The tile rule for G: where to begin, its neighbours and the D asked about, beside the measured time
    of a forward with 1 + D rows over that with 1, where there is one."""
    begin, measured = start_d(g, tile_rows), verify_ms or {}
    table = layout.new_table(("D", "rows", "tiles", "fill", "T_verify(1+D) / T_verify(1)", ""), "rrrrrl")
    for d in sorted({max(begin - 1, 0), begin, begin + 1, *drafts}):
        found, mark = tile(g, d, tile_rows), "  <- begin here" if d == begin else ""
        cost = _relative(measured.get(str(1 + d)), measured.get("1"))
        fill = words.figure(found.fill, "")
        table.add_row(str(d), str(found.rows), str(found.tiles), fill, cost, f"{found.verdict}{mark}")
    rule = (
        f"G = {g} query heads per KV head, tiles of {tile_rows} rows: begin at D = {begin} drafts a round, "
        f"beyond it keep G(1+D) a multiple of {tile_rows}. The rule is for kernels that attention dominates: "
        "hold it against the measured time of a verification before you trust it."
    )
    return Group(Text(rule), table)


def _relative(ms: float | None, one_ms: float | None) -> str:
    return words.figure(ms / one_ms if ms is not None and one_ms else None, "x")
