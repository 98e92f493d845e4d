"""What a training is asked for, and where everything of it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftboard.measure.embedded import EMBEDDED_ID, default_cache
from draftboard.measure.loading import target_id
from draftboard_drafters.checkpoints.shipped import slug


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, for which target, from what, and where it is kept.

    `replies` is the file of the target's replies, `work` holds states and unfinished trainings, `weights`
    receives one folder per method, `results` has the replies that an evaluation replays. `reply_tokens` is
    how many tokens of replies the data shall have in all; `tokens` overrides a recipe's token visits;
    `further` trains what is shipped for so many more instead.
    """

    target: str
    prompts: Path
    replies: Path
    work: Path
    weights: Path
    results: Path
    reply_tokens: int = 1_000_000
    tokens: int | None = None
    further: int | None = None
    threads: int | None = None
    say: Callable[[str], None] = print


def job(target: str | None, root: Path, work: Path | None, **options: Any) -> Job:
    """The job for a target (None: the embedded one) in a checkout."""
    name = target or EMBEDDED_ID
    folder = slug(target_id(name))
    work = work or default_cache() / "training" / folder
    return Job(
        target=name,
        prompts=root / "drafters" / "train_prompts",
        replies=root / "drafters" / "train_data" / f"{folder}.jsonl",
        work=work,
        # A shortened training never replaces what is shipped.
        weights=work / "weights" if options.get("tokens") else root / "drafters" / "weights" / folder,
        results=root / "results",
        **options,
    )
