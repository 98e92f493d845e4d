"""N-gram lookup, also called prompt lookup: what followed the last few tokens the last time they stood here.

Algorithm (A. Saxena, "Prompt Lookup Decoding", 2023, github.com/apoorvumang/prompt-lookup-decoding): take the
last n committed tokens, find them earlier in the text (prompt and reply), propose the tokens that followed.
n is tried from `max_n` down to `min_n`. The policies differ in the place they choose among equals:

`longest-then-latest`
    the longest n that occurs, its newest place: recent text resembles what is being written more closely.
`longest-then-earliest`
    the longest n that occurs, its oldest place (vLLM's `ngram`).
`first`
    transformers' `prompt_lookup_num_tokens`: n down to 1, the oldest place. It differs from the line above in
    having no lower bound, so it asks for `min_n=1`. Transformers also cuts a proposal before an end-of-text
    id, which its loop needs and this one does not: a drafted stop token is verified like any other.

In all of them the last n tokens never match themselves, the continuation may run into them, and it ends
where the text ends, so a draft can be shorter than K. Drafts are point masses: there is no distribution.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from draftboard.drafter import NO_WEIGHTS, Card, Claim, Draft, Drafter, DraftSampler, Target, UserError
from draftboard.errors import unknown

Policy = Literal["longest-then-latest", "longest-then-earliest", "first"]

CARD = Card(
    label="N-gram",
    order=10,
    mechanism="Looks the last few tokens up in the text so far and proposes what followed them there.",
    needs="Nothing but token ids.",
    drafting="lookup",
    training_cost=Claim("none", "the method has no weights"),
    claims=(
        Claim(
            "2x to 4x on input-grounded tasks: summaries, questions about a document, multi-turn chat",
            "github.com/apoorvumang/prompt-lookup-decoding, README",
        ),
        Claim(
            "no training; only for long copying",
            "articles about NVIDIA's selection table of 2 Sep 2026",
            second_hand=True,
        ),
    ),
    when_to_use="When the reply repeats the prompt: edits, reformatting, quoting, retrieval.",
    serving_name="ngram",
)


class NgramIndex:
    """A growing text, and for each n-gram in it the place of the token that followed it.

    `tables[n]` maps n tokens to the index of the follower, of the newest occurrence or of the oldest. An
    n-gram enters when its follower arrives: the suffix of the text, which has none, can not match itself.
    """

    def __init__(self, min_n: int, max_n: int, newest: bool) -> None:
        self.text: list[int] = []
        self.tables: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(max_n, min_n - 1, -1)}
        self.newest = newest

    def extend(self, tokens: list[int]) -> None:
        """Appends tokens: one entry per table and token, whatever the length of the text."""
        for token in tokens:
            at = len(self.text)
            for n, table in self.tables.items():
                if n <= at:
                    gram = tuple(self.text[at - n :])
                    table[gram] = at if self.newest else table.get(gram, at)
            self.text.append(token)

    def continuation(self, limit: int) -> list[int]:
        """At most `limit` tokens that followed the longest suffix seen before; one look-up per table."""
        for n, table in self.tables.items():
            follower = table.get(tuple(self.text[-n:]))
            if follower is not None:
                return self.text[follower : follower + limit]
        return []


class NgramDrafter:
    """Keeps the index of one sequence; see the module's docstring."""

    taps: tuple[int, ...] = ()
    weights = NO_WEIGHTS

    def __init__(self, device: torch.device, k: int, min_n: int, max_n: int, newest: bool) -> None:
        self.device, self.num_speculative_tokens = device, k
        self.index_options = (min_n, max_n, newest)
        self.release()

    def prefill(self, tokens: Tensor, features: Tensor) -> None:
        """Starts the index anew."""
        self.release()
        self.index.extend(tokens.tolist())

    def propose(self, limit: int) -> Draft:
        """The continuation of the longest match, or nothing."""
        tokens = self.index.continuation(min(limit, self.num_speculative_tokens))
        return Draft(torch.tensor(tokens, dtype=torch.int64, device=self.device))

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        """Adds the new tokens to the index."""
        self.index.extend(tokens.tolist())

    def release(self) -> None:
        """Forgets the text."""
        self.index = NgramIndex(*self.index_options)


def build(
    target: Target,
    sampler: DraftSampler,
    *,
    num_speculative_tokens: int = 8,
    min_n: int = 1,
    max_n: int = 4,
    policy: Policy = "longest-then-latest",
) -> Drafter:
    """An n-gram drafter.

    The defaults rest on a replay of a 135M chat model's greedy replies of at most 128 tokens, by
    `harness/bench/ngram_replay.py` over the records in `results/`. Tokens emitted a round with K = 8, for
    chat, code and copying: n from 4 to 1 has 1.88, 2.06 and 2.94, n from 4 to 2 has 1.73, 1.91 and 2.69, n of
    5 alone 1.48, 1.57 and 2.09. A fifth token of suffix adds less than 0.5 %. The oldest place is no clear
    loser: 2 % worse in chat, 1 % in copying, 2 % better in code. A proposal costs no forward, so K is larger
    than for a model. Raise `min_n` where a wasted row is dear: it only changes speed.

    Raises UserError for a lookup that could never run: K or min_n below 1, max_n below min_n, an unknown
    policy, or `first` with a lower bound.
    """
    if policy not in get_args(Policy):
        raise unknown("policy", policy, get_args(Policy))
    if num_speculative_tokens < 1:
        raise UserError(f"num_speculative_tokens must be at least 1, found {num_speculative_tokens}")
    if not 1 <= min_n <= max_n:
        raise UserError(f"n-gram lengths need 1 <= min_n <= max_n, found min_n={min_n}, max_n={max_n}")
    if policy == "first" and min_n != 1:
        raise UserError(f"policy 'first' tries n down to 1, found min_n={min_n}; set min_n=1")
    newest = policy == "longest-then-latest"
    return NgramDrafter(target.device, num_speculative_tokens, min_n, max_n, newest)
