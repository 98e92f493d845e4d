"""The promises of `draftboard.drafter` as small checks, the same for our drafters and for anybody's.

A check takes `make(target, sampler) -> Drafter` and a target that computes in float32, and raises
`ContractError` with one sentence about the promise that was broken. `run_all` runs them all on a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from draftboard.errors import UserError
from draftboard.measure import contract_drafts as drafts
from draftboard.measure import contract_texts as texts
from draftboard.measure import plugins
from draftboard.measure.rehearsal import Check, ContractError, Make, toy_target
from draftboard.measure.target import TargetModel

__all__ = ["CHECKS", "Check", "ContractError", "Make", "Outcome", "maker", "run_all", "toy_target"]

K_OPTION = "num_speculative_tokens"
LOSSLESS_K = (1, 3, 7)
"""Drafts a round for which `run_all` compares replies with plain decoding."""

CHECKS: tuple[Check, ...] = (
    texts.check_declarations,
    texts.check_limit,
    drafts.check_tensors,
    texts.check_commits,
    texts.check_determinism,
    texts.check_release,
    texts.check_view,
    texts.check_stops,
    texts.check_caps,
    drafts.check_laws,
)
"""All but `texts.check_lossless`, which `run_all` repeats for several K."""


class Outcome(NamedTuple):
    """What one check found; `message` is empty when the promise was kept."""

    name: str
    ok: bool
    message: str


def run_all(module: ModuleType, target: TargetModel, options: Mapping[str, Any]) -> Iterator[Outcome]:
    """Every check on a drafter module, one at a time. The target must compute in float32.

    Raises UserError for options that the module does not have, and for a module that cannot be made.
    """
    make = maker(module, options)
    for check in CHECKS:
        yield _outcome(check.__name__.removeprefix("check_"), check, make, target)
    takes_k = K_OPTION in getattr(make, "keywords", {}) and K_OPTION not in options
    for k in LOSSLESS_K if takes_k else (None,):
        name = "lossless" if k is None else f"lossless with K = {k}"
        make_k = make if k is None else maker(module, {**options, K_OPTION: k})
        yield _outcome(name, texts.check_lossless, make_k, target)


def maker(module: ModuleType, options: Mapping[str, Any]) -> Make:
    """The module's `build` with these options, or its `example` where `build` needs more than they give."""
    missing = [
        name
        for name, option in plugins.options_of(module).items()
        if option.default is option.empty and name not in options
    ]
    if missing and not hasattr(module, "example"):
        raise UserError(
            f"drafter {plugins.short_name(module)!r} needs the option {missing[0]!r} and has no example to"
            " check instead; set the option or define example(target, sampler, *, ...)"
        )
    function = "example" if missing else "build"
    return partial(getattr(module, function), **plugins.bind(module, options, function))


def _outcome(name: str, check: Check, make: Make, target: TargetModel) -> Outcome:
    try:
        check(make, target)
    except ContractError as error:
        return Outcome(name, False, str(error))
    except Exception as error:
        return Outcome(name, False, f"{type(error).__name__}: {error}")
    return Outcome(name, True, "")
