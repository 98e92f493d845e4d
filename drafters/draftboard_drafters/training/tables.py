"""The cards of trained drafters as the tables that the README shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftboard.drafter import UserError

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Columns of a learning curve."""
_COSTS = (
    "| method | parameters | text tokens | visits | CPU hours | held-out length | drafts accepted |",
    "| --- " * 7 + "|",
)
_CURVES = (
    f"| held-out length after about | {' | '.join(f'{share:.0%}' for share in SHARES)} of the visits |",
    "| --- " * (len(SHARES) + 1) + "|",
)


def tables(weights: Path) -> str:
    """Cost and outcome of each method, then its learning curve, as Markdown. Raises UserError naming a card
    that cannot be read."""
    cards = {path.parent.name: _read(path) for path in sorted(weights.glob("[!.]*/card.json"))}
    if not cards:
        raise UserError(f"no cards in {weights}; train something, or name another --target or --root")
    rows = [_rows(method, card, weights) for method, card in cards.items()]
    costs, curves = zip(*rows, strict=True)
    return "\n".join([*_COSTS, *costs, "", *_CURVES, *curves]) + "\n"


def _rows(method: str, card: Any, weights: Path) -> tuple[str, str]:
    try:
        return _cost(method, card), _curve(method, card)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        file = weights / method / "card.json"
        raise UserError(f"{file} lacks or garbles {error}; restore it") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; train the method again") from None


def _cost(method: str, card: dict[str, Any]) -> str:
    cells = (
        f"`{method}`",
        f"{card['parameters'] / 1e6:.1f} M",
        f"{card['data']['tokens']:,}",
        f"{card['token_visits']:,}",
        f"{card['cpu_seconds'] / 3600:.2f}",
        f"{card['curve'][-1]['length']:.3f}",
        " ".join(f"{share:.3f}" for share in card["held_out_positions"]),
    )
    return f"| {' | '.join(cells)} |"


def _curve(method: str, card: dict[str, Any]) -> str:
    cells = (
        f"{p['length']:.3f} ({p['tokens'] / 1e6:.1f} M, {p['cpu_seconds'] / 3600:.2f} h)"
        for p in (_nearest(card["curve"], share) for share in SHARES)
    )
    return f"| `{method}` | {' | '.join(cells)} |"


def _nearest(points: list[dict[str, Any]], share: float) -> dict[str, Any]:
    """The point of a curve next to a share of its visits."""
    place = share * points[-1]["tokens"]
    return min(points, key=lambda point: abs(float(point["tokens"]) - place))
