"""The part of the drafter contract that leads a drafter through texts and whole replies."""

from __future__ import annotations

import random
from typing import Any

import torch

from draftboard.drafter import Target, Weights
from draftboard.measure import rehearsal
from draftboard.measure.rehearsal import (
    PROMPTS,
    Make,
    Verdict,
    Walk,
    demand,
    ids,
    plain,
    reply,
    sampler,
    told,
)
from draftboard.measure.target import TargetModel


@torch.inference_mode()
def check_declarations(make: Make, target: TargetModel) -> None:
    """Its taps exist, its weights are described, and K is a number."""
    drafter = make(target, sampler(target))
    taps, k = drafter.taps, drafter.num_speculative_tokens
    demand(isinstance(taps, tuple), f"taps is {taps!r}; expected a tuple of layer numbers")
    exist = all(-1 <= tap <= target.num_layers for tap in taps)
    demand(exist, f"taps are {taps}; this target has -1 to {target.num_layers}")
    demand(isinstance(drafter.weights, Weights), f"weights is {drafter.weights!r}; expected a Weights")
    demand(type(k) is int and k >= 0, f"num_speculative_tokens is {k!r}; expected a whole number")


@torch.inference_mode()
def check_limit(make: Make, target: TargetModel) -> None:
    """Never more guesses than the limit or than K, and none at limit 0."""
    drafter = make(target, sampler(target))
    for prompt in PROMPTS:
        with Walk(drafter, target, prompt) as walk:
            for limit in (0, 1, 2, 3, 0, rehearsal.MANY):
                count, most = len(walk.propose(limit).tokens), min(limit, drafter.num_speculative_tokens)
                demand(count <= most, f"propose({limit}) gave {count} guesses; at most {most} were allowed")
                walk.commit([3])


VERDICTS: dict[str, Verdict] = {
    "kept every guess": rehearsal.all_kept,
    "kept no guess": rehearsal.none_kept,
    "kept some guesses": rehearsal.some_kept,
    "had nothing to do with the guesses": rehearsal.other_text,
}


@torch.inference_mode()
def check_commits(make: Make, target: TargetModel) -> None:
    """After any commits it proposes what a freshly prefilled drafter proposes."""
    drafter, spare = make(target, sampler(target)), make(target, sampler(target))
    for name, verdict in VERDICTS.items():
        dice = random.Random(name)
        for prompt in PROMPTS[::2]:
            with Walk(drafter, target, prompt) as walk:
                for count in range(6):
                    found, fresh = ids(walk.propose()), walk.afresh(spare)
                    demand(
                        found == fresh,
                        f"after {count} commits that {name} it proposed {found}; freshly prefilled {fresh}",
                    )
                    walk.commit(verdict(found, dice))


@torch.inference_mode()
def check_determinism(make: Make, target: TargetModel) -> None:
    """At temperature 0 the same text gets the same guesses, whatever the seed."""
    one, other = (make(target, sampler(target, seed=seed)) for seed in (1, 2))
    for prompt in PROMPTS:
        first, second = told(one, target, prompt), told(other, target, prompt)
        demand(first == second, f"the same text got the guesses {first} and then {second}")


@torch.inference_mode()
def check_release(make: Make, target: TargetModel) -> None:
    """After `release` another prompt finds no trace of the last one."""
    used = make(target, sampler(target))
    for before, prompt in zip(PROMPTS, PROMPTS[1:] + PROMPTS[:1], strict=True):
        told(used, target, before)
        found, expected = told(used, target, prompt), told(make(target, sampler(target)), target, prompt)
        demand(found == expected, f"after another prompt it proposed {found}, without one {expected}")


@torch.inference_mode()
def check_view(make: Make, target: TargetModel) -> None:
    """It asks the target only for what `drafter.Target` offers, so it cannot see a round's logits."""
    view: Any = _View(target)
    drafter = make(view, sampler(target))
    for prompt in PROMPTS:
        told(drafter, target, prompt)


class _View:
    """The target without what the protocol does not offer."""

    OFFERED = frozenset(name for name in vars(Target) if not name.startswith("_"))

    def __init__(self, target: TargetModel) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        demand(name in self.OFFERED, f"it asked the target for {name!r}, which drafter.Target does not offer")
        return getattr(self._target, name)


@torch.inference_mode()
def check_lossless(make: Make, target: TargetModel) -> None:
    """At temperature 0 every reply equals plain decoding's."""
    drafter = make(target, sampler(target))
    for prompt in PROMPTS:
        found, expected = list(reply(drafter, target, prompt, 16).token_ids), plain(target, prompt, 16)
        demand(found == expected, f"it replied {found}; plain decoding gives {expected}")


@torch.inference_mode()
def check_stops(make: Make, target: TargetModel) -> None:
    """A reply ends at the first stop token, wherever in a draft that stands."""
    drafter = make(target, sampler(target))
    for prompt in PROMPTS[1:3]:
        whole = plain(target, prompt, 10)
        for stop in dict.fromkeys(whole):
            expected = whole[: whole.index(stop) + 1]
            with rehearsal.stopping_at(target, stop):
                found = list(reply(drafter, target, prompt, 10).token_ids)
            demand(found == expected, f"with stop token {stop} it replied {found}; expected {expected}")


@torch.inference_mode()
def check_caps(make: Make, target: TargetModel) -> None:
    """A reply is as long as asked for, to the token."""
    drafter = make(target, sampler(target))
    for prompt in PROMPTS[1:3]:
        whole = plain(target, prompt, 6)
        for cap in range(1, 7):
            found = list(reply(drafter, target, prompt, cap).token_ids)
            demand(found == whole[:cap], f"capped at {cap} it replied {found}; expected {whole[:cap]}")
