"""The cards of trained drafters as the tables that the README shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftboard.drafter import UserError

POINTS = 6
"""Columns of a learning curve."""


def tables(weights: Path) -> str:
    """Cost and outcome of each method, then its learning curve, as Markdown. Raises UserError naming a card
    that cannot be read."""
    cards = {path.parent.name: _read(path) for path in sorted(weights.glob("*/card.json"))}
    return "\n".join([*_costs(cards), "", *_curves(cards)]) + "\n"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; train the method again") from None


def _costs(cards: dict[str, Any]) -> list[str]:
    head = "| method | parameters | text tokens | visits | CPU hours | held-out length | drafts accepted |"
    return [head, "| --- " * 7 + "|", *(_cost(method, card) for method, card in cards.items())]


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


def _curves(cards: dict[str, Any]) -> list[str]:
    most = max((len(card["curve"]) for card in cards.values()), default=2) - 1
    shares = [f"{place / most:.0%}" for place in _places(most + 1)]
    head = f"| held-out length after | {' | '.join(shares)} of the visits |"
    return [head, "| --- " * (POINTS + 1) + "|", *(_curve(method, card) for method, card in cards.items())]


def _curve(method: str, card: dict[str, Any]) -> str:
    points = card["curve"]
    picked = [points[place] for place in _places(len(points))]
    lengths = " | ".join(f"{p['length']:.3f} ({p['cpu_seconds'] / 3600:.2f} h)" for p in picked)
    return f"| `{method}` | {lengths} |"


def _places(count: int) -> list[int]:
    """Which of `count` points are shown, the first and the last among them."""
    return [round(place * (count - 1) / (POINTS - 1)) for place in range(POINTS)]
