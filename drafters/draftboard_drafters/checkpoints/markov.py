"""DSpark's switches, named alike by all layouts that have them."""

from __future__ import annotations

from typing import Any, get_args

from draftboard.errors import unknown
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Markov, Parallel


def markov_switches(config: Config) -> dict[str, Any]:
    """`markov`, `markov_rank` and `confidence` of a `Parallel`.

    Raises UserError for an unknown head, and for a confidence head without a Markov head: no published
    drafter has one alone.
    """
    rank, sure = config.count("markov_rank", least=0), config.need("enable_confidence_head", bool)
    if rank == 0:
        if sure:
            raise config.refuse("DSpark", "it has a confidence head and no Markov head (markov_rank is 0)")
        return {}
    kind = config.need("markov_head_type", str)
    if kind not in get_args(Markov):
        raise unknown("markov_head_type", kind, get_args(Markov), config.where)
    confidence = None
    if sure:
        both = config.need("confidence_head_with_markov", bool)
        confidence = "hidden and previous token" if both else "hidden"
    return {"markov": kind, "markov_rank": rank, "confidence": confidence}


def markov_fields(block: Parallel) -> dict[str, Any]:
    """The same switches as config.json spells them."""
    fields: dict[str, Any] = {
        "enable_confidence_head": block.confidence is not None,
        "markov_rank": block.markov_rank,
    }
    if block.markov is not None:
        fields["markov_head_type"] = block.markov
    if block.confidence is not None:
        fields["confidence_head_with_markov"] = block.confidence != "hidden"
    return fields
