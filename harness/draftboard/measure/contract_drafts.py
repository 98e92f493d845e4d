"""The part of the drafter contract that looks at one draft: its tensors, and the laws it was drawn from."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from draftboard.drafter import Draft, Drafter
from draftboard.measure import rehearsal
from draftboard.measure.rehearsal import PROMPTS, Make, Walk, demand, ids, sampler
from draftboard.measure.target import TargetModel


@torch.inference_mode()
def check_tensors(make: Make, target: TargetModel) -> None:
    """Guesses are ids that the target knows, laws are distributions, and a certain guess has none."""
    known = _known_ids(target)
    for temperature in (0.0, 1.0):
        drafter, dice = make(target, sampler(target, temperature)), random.Random(0)
        for prompt in PROMPTS:
            with Walk(drafter, target, prompt) as walk:
                for _ in range(4):
                    draft = walk.propose()
                    _check_tokens(draft, target, known)
                    _check_probs(draft, target, temperature)
                    walk.commit(rehearsal.some_kept(ids(draft), dice))


def _known_ids(target: TargetModel) -> set[int]:
    """The ids of the target's tokenizer; every row of the logits where there is none."""
    tokenizer = target.tokenizer
    return set(range(target.vocab_size)) if tokenizer is None else set(tokenizer.get_vocab().values())


def _check_tokens(draft: Draft, target: TargetModel, known: set[int]) -> None:
    tokens, confidence = draft.tokens, draft.confidence
    demand(
        tokens.dtype == torch.int64 and tokens.ndim == 1, f"tokens are {_look(tokens)}; expected int64 [K]"
    )
    demand(tokens.device == target.device, f"tokens are on {tokens.device}, the target on {target.device}")
    strange = [token for token in ids(draft) if token not in known]
    demand(not strange, f"it proposed the ids {strange}, which the target's tokenizer does not have")
    if confidence is not None:
        right = confidence.dtype == torch.float32 and confidence.shape == tokens.shape
        demand(right, f"confidence is {_look(confidence)}; expected float32 [{len(tokens)}]")


def _check_probs(draft: Draft, target: TargetModel, temperature: float) -> None:
    probs = draft.probs
    if probs is None:
        return
    demand(temperature > 0, "probs were given at temperature 0; a certain guess has probs None")
    right = probs.dtype == torch.float32 and probs.shape == (len(draft.tokens), target.vocab_size)
    demand(right, f"probs are {_look(probs)}; expected float32 [{len(draft.tokens)}, {target.vocab_size}]")
    sums = probs.double().sum(-1)
    demand(bool((probs >= 0).all()), "a probability is negative")
    demand(bool(((sums - 1).abs() < 1e-4).all()), f"the rows of probs add up to {sums.tolist()}; expected 1")
    own = probs.gather(1, draft.tokens[:, None])
    demand(bool((own > 0).all()), "a guess has probability 0 in the law it was drawn from")


def _look(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@torch.inference_mode()
def check_laws(make: Make, target: TargetModel) -> None:
    """At temperature 1 the laws it hands over are those it drew from; guesses without a law are certain."""
    pair = [make(target, sampler(target, 1.0, seed)) for seed in (1, 2)]
    drawn: list[Draft] = []
    for dice in map(random.Random, range(40)):
        text = [*PROMPTS[dice.randrange(len(PROMPTS))], *rehearsal.other_text([], dice)]
        drafts = [_first_draft(drafter, target, text) for drafter in pair]
        drawn += [draft for draft in drafts if draft.probs is not None]
        if all(draft.probs is None for draft in drafts):
            same = ids(drafts[0]) == ids(drafts[1])
            demand(same, "guesses without probs changed with the seed; a drawn guess needs its law")
    if drawn:
        _check_frequencies(drawn)


def _first_draft(drafter: Drafter, target: TargetModel, text: list[int]) -> Draft:
    with Walk(drafter, target, text) as walk:
        return walk.propose()


def _check_frequencies(drafts: list[Draft]) -> None:
    """Draws fall on their law's likeliest token, and into its likelier half, as often as the law says.

    Given all earlier draws, hit minus probability P has mean 0 and variance P(1-P). So a drafter that keeps
    its promise leaves 4.5 deviations of the sum once in 100,000 seeds.
    """
    laws = torch.cat([draft.probs for draft in drafts if draft.probs is not None]).double()
    tokens = torch.cat([draft.tokens for draft in drafts])[:, None]
    ordered, order = laws.sort(dim=-1, descending=True)
    likelier = torch.zeros_like(laws).scatter(1, order, (ordered.cumsum(-1) - ordered < 0.5).double())
    likeliest = torch.zeros_like(laws).scatter(1, order[:, :1], 1.0)
    for name, event in (("likeliest token", likeliest), ("likelier half", likelier)):
        chance = (laws * event).sum(-1)
        excess = float((event.gather(1, tokens)[:, 0] - chance).sum())
        spread = float((chance * (1 - chance)).clamp(min=0).sum().sqrt())
        demand(
            abs(excess) <= 4.5 * spread + 1e-3,
            f"of {len(tokens)} draws {excess:+.1f} more than their laws say fell on the {name}"
            f" (deviation {spread:.1f}); probs must be the law that was drawn from",
        )
