"""What a drafter is. The only file that the author of a drafter must read.

A drafter is one module with two names:

`CARD`
    a `Card`: label, order, mechanism, cost, claims with their sources, when to use.
`build(target, sampler, *, num_speculative_tokens=..., option=default, ...) -> Drafter`
    makes the drafter. The signature is the list of options: the command line and the suites may set
    every keyword-only argument, and nothing else. `num_speculative_tokens` is K, the drafts per round,
    counted without the anchor and without the bonus token.

The letters in the shapes: n prompt tokens, m newly committed tokens, K guesses, V rows of the target's
logits, L taps asked for, H the target's hidden size. There is no batch axis: one sequence at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from draftboard.errors import UserError
from draftboard.record.records import Card, Claim, Origin, Training, Weights

__all__ = [
    "FINAL_NORM",
    "NO_WEIGHTS",
    "Captured",
    "Card",
    "Claim",
    "Draft",
    "DraftSampler",
    "Drafter",
    "Origin",
    "Target",
    "Training",
    "UserError",
    "Weights",
]

FINAL_NORM = -1
"""The tap after the target's final norm. Other taps: 0 is the embedding output, k the raw residual output
of block k-1, so the number of layers is the last block before the norm."""

NO_WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Draft:
    """One round's guesses.

    `tokens` int64 [K], K may be 0. `probs` float32 [K, V] is exactly the distribution each token was drawn
    from, or None when every token was certain (a lookup in the text, an argmax): a point mass.
    `confidence` float32 [K], where a method predicts which guesses will pass.
    """

    tokens: Tensor
    probs: Tensor | None = None
    confidence: Tensor | None = None


class Drafter(Protocol):
    """Guesses what the target will say next.

    Ids are target ids (a head with a smaller vocabulary maps before it returns); tensors are on the
    target's device. After `prefill` and after `commit` the drafter knows exactly the committed tokens and
    nothing it guessed: whatever was committed in whatever portions, it proposes what a drafter freshly
    prefilled with the same tokens would propose. At temperature 0 a proposal is deterministic.
    """

    taps: tuple[int, ...]
    """Target states it needs at each committed position; () makes L = 0."""
    weights: Weights
    """The tensors this method adds."""
    num_speculative_tokens: int
    """K as settled when it was built, for instance from a checkpoint; 0 for one that never guesses."""

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Starts a sequence. tokens int64 [n+1]: prompt and first reply token.
        features [n, L, H] in the target's dtype: features[i] is what predicted tokens[i+1]."""

    def propose(self, limit: int) -> Draft:
        """At most `limit` guesses (maybe none), from committed tokens only. `limit` may be 0."""

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """The verdict on the last proposal. tokens int64 [m], features [m, L, H]: features[i] predicted
        tokens[i]. Every guess that is not in it is rolled back."""

    def release(self) -> None:
        """Drops the sequence and its memory. The next call is `prefill`."""


@runtime_checkable
class Captured(Protocol):
    """What a drafter may be besides: one whose work is replayed from CUDA graphs, where the device has them.

    `draftboard.measure.graphs.Replays` does the capturing.
    """

    def prepare(self) -> None:
        """Captures what is still wanted, outside of the clock: before each reply, while nothing is cached."""

    def captured(self) -> tuple[int | None, str | None]:
        """The number of graphs; or None, and why there are none."""


class Target(Protocol):
    """What a drafter may ask of the target when it is built. All tensors live on `device` in `dtype`."""

    @property
    def id(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def config(self) -> Any:
        """The target's transformers configuration."""

    @property
    def tokenizer(self) -> Any:
        """The target's transformers tokenizer, or None for a target without one."""

    @property
    def max_context(self) -> int:
        """Positions its cache holds."""

    @property
    def vocab_size(self) -> int:
        """V: rows of its logits. Rows past the tokenizer's last id are padding."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [n, H] of ids int64 [n]."""

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of states [n, H] that are already past the final norm."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The target's last norm, applied to raw states [n, H]."""


class DraftSampler(Protocol):
    """Chooses draft tokens under the run's sampling settings, so that `Draft.probs` is always exact."""

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens int64 [n] for logits [n, V], and the distributions float32 [n, V] they were drawn from:
        None when greedy. Rows are drawn independently."""

    def uniform(self, count: int) -> Tensor:
        """float64 [count] in [0, 1) from the run's stream: the numbers by which `draw` would draw so many."""

    def draw_by(self, numbers: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """`draw` above temperature 0 by `numbers` float64 [n], as a CUDA graph must."""
