"""The tile rule for the number of drafts, and what a change of one term would do to the speedup.

The tile rule is a diagnostic to hold against the measured T_verify, never a pass mark. When attention
dominates, the verification forward has G * (1 + D) query rows per KV head, G being query heads per KV head
and D the drafts a round; a kernel works on tiles of T rows. Begin at the D that fills one tile, and beyond
it keep the rows a multiple of T. T is 128 on the kernels and GPUs of the source (NVIDIA's article on
co-designing models with speculative decoding, September 2026; we have read of it, not it itself). Some
print the rule as "D = 128G - 1"; their own examples show that the division was lost: G = 8 goes with D = 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from draftboard.errors import UserError
from draftboard.judge.positions import by_position
from draftboard.judge.terms import Terms
from draftboard.record.records import Arm, TargetRef

TILE_ROWS = 128

TileVerdict = Literal["below a tile", "on a tile boundary", "straddling"]


@dataclass(frozen=True, slots=True)
class Tile:
    """How the rows of a verification lie on the tiles. `fill` is the share of the tiles' rows in use."""

    g: int
    d: int
    tile_rows: int
    rows: int
    tiles: int
    fill: float
    verdict: TileVerdict


def group_size(target: TargetRef) -> int:
    """G of a target: query heads per KV head."""
    return _whole_ratio(target.query_heads, target.kv_heads, "query heads", "KV heads")


def start_d(g: int, tile_rows: int = TILE_ROWS) -> int:
    """The D to begin with: the largest whose rows fit one tile. Raises UserError when G alone exceeds it."""
    _positive("G", g)
    if g > tile_rows:
        raise UserError(f"G = {g} query rows are more than a tile of {tile_rows}; the rule does not apply")
    return tile_rows // g - 1


def tile(g: int, d: int, tile_rows: int = TILE_ROWS) -> Tile:
    """The rows of D drafts on tiles of `tile_rows`."""
    _positive("G", g)
    _positive("the tile's number of rows", tile_rows)
    if d < 0:
        raise UserError(f"D must be 0 or more, found {d}")
    rows = g * (1 + d)
    tiles = -(-rows // tile_rows)
    return Tile(g, d, tile_rows, rows, tiles, rows / (tile_rows * tiles), _verdict(rows, tile_rows))


def _verdict(rows: int, tile_rows: int) -> TileVerdict:
    if rows % tile_rows == 0:
        return "on a tile boundary"
    return "below a tile" if rows < tile_rows else "straddling"


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name} must be 1 or more, found {value}")


def _whole_ratio(above: int, below: int, name_above: str, name_below: str) -> int:
    _positive(name_above, above)
    _positive(name_below, below)
    if above % below:
        raise UserError(f"{above} {name_above} do not divide over {below} {name_below}; give G with --g")
    return above // below


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change of the terms and the speedup that the formula gives for it, all else being equal."""

    change: str
    terms: Terms
    speedup: float
    gain: float
    """Its speedup over the measured one."""
    k: int | None = None
    """The K it is about, where that is the change."""


def what_if(terms: Terms) -> tuple[WhatIf, ...]:
    """The measured terms and single changes of them."""
    changes = {
        "as measured": terms,
        "half the draft cost": replace(terms, t_draft_ms=terms.t_draft_ms / 2),
        "a free draft": replace(terms, t_draft_ms=0.0),
        "verification at the price of one token": replace(terms, t_verify_ms=terms.t_target_ms),
        "no cost of the loop": replace(terms, t_other_ms=0.0),
        "one more token per round": replace(terms, acceptance_length=terms.acceptance_length + 1),
    }
    return tuple(
        WhatIf(change, changed, changed.speedup, changed.speedup / terms.speedup)
        for change, changed in changes.items()
    )


def neighbours(terms: Terms, arm: Arm, verify_ms: Mapping[str, float]) -> tuple[WhatIf, ...]:
    """What one draft fewer and one more would give, as an estimate; empty where no K was asked for.

    One fewer takes a token from each round that accepted all K. One more adds a token to as many of those
    as the K-th guess was accepted of once it was tested. A serial drafter's cost goes with K, another's
    stays. T_verify goes with the timed forwards of `verify_ms` (ms by rows), and stays where there are none.
    """
    positions = by_position(arm.traces)
    if not arm.k or len(positions) != arm.k or positions[-1].unconditional is None:
        return ()
    last = positions[-1]
    rounds = sum(len(trace.rounds) for trace in arm.traces if trace.rounds is not None)
    full = last.accepted / rounds
    gains = {-1: -full, 1: full * (last.conditional or 0.0)}
    return tuple(_neighbours(terms, arm, arm.k, gains, verify_ms))


def _neighbours(
    terms: Terms, arm: Arm, k: int, gains: Mapping[int, float], verify_ms: Mapping[str, float]
) -> Iterator[WhatIf]:
    for step, gain in gains.items():
        if k + step > 0:
            serial = (k + step) / k if arm.card.drafting == "serial" else 1.0
            changed = replace(
                terms,
                acceptance_length=terms.acceptance_length + gain,
                t_draft_ms=terms.t_draft_ms * serial,
                t_verify_ms=terms.t_verify_ms * _relative_ms(verify_ms, 1 + k + step, 1 + k),
            )
            name = f"K = {k + step} in place of {k} (estimate)"
            yield WhatIf(name, changed, changed.speedup, changed.speedup / terms.speedup, k + step)


def _relative_ms(verify_ms: Mapping[str, float], rows: int, base_rows: int) -> float:
    """Time of a forward of `rows` over that of `base_rows`, between timed ones by a straight line."""
    timed = sorted((int(name), ms) for name, ms in verify_ms.items())
    if not timed or not timed[0][0] <= min(rows, base_rows) <= max(rows, base_rows) <= timed[-1][0]:
        return 1.0
    rows_timed, times = [at for at, _ in timed], [ms for _, ms in timed]
    found, base = np.interp([rows, base_rows], rows_timed, times)
    return float(found / base)
