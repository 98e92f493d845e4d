"""What a checkpoint's record says of conventions that are easily overlooked, and what it does not guess."""

from __future__ import annotations

import importlib

import pytest

from draftboard.drafter import UserError
from draftboard.measure import rehearsal
from draftboard_drafters import checkpoints, eagle3
from draftboard_drafters.checkpoints import Checkpoint, loader
from golden import case
from tiny import tiny_target


def golden(name: str) -> Checkpoint:
    return checkpoints.load(case(name).drafter)


def test_reference_taps_follow_the_targets_depth() -> None:
    taps = golden("safeailab_eagle3").taps_of
    assert [taps(layers) for layers in (7, 8, 36)] == [(2, 3, 4), (2, 4, 5), (2, 18, 33)]


@pytest.mark.parametrize("layers", range(1, 7))
def test_reference_taps_of_a_shallow_target_are_refused(layers: int) -> None:
    """Equal, falling or negative ones: the reference code takes fewer states there, or others."""
    with pytest.raises(UserError, match=rf"names no taps.* in a target of {layers} layers; .* at least 7"):
        golden("safeailab_eagle3").taps_of(layers)


def test_a_drafter_without_taps_is_refused_beside_a_shallow_target() -> None:
    target = tiny_target(hidden_size=64, vocab_size=256, num_hidden_layers=6)
    with pytest.raises(UserError, match=r"gives \(2, 3, 3\) in a target of 6 layers"):
        eagle3.drafter(golden("safeailab_eagle3"), target, rehearsal.sampler(target), None)


def test_taps_that_a_file_names_are_taken_whatever_the_depth() -> None:
    assert golden("specforge_eagle3").taps_of(3) == (1, 4, 6)


SWITCHES = {
    "safeailab_eagle3": ("embedding_first", "norm_before_head"),
    "specforge_eagle3": ("embedding_first", "tap_norms", "norm_before_head"),
    "speculators_eagle3": (
        *("embedding_first", "tap_norms", "norm_before_residual", "norm_before_head", "recycle_normed"),
    ),
    "speculators_mtp_qwen3": ("embedding_first", "norm_before_head", "recycle_normed"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_the_description_says_which_switches_are_on(name: str) -> None:
    """An inspection begins with it and has a line with every switch, whichever way it stands."""
    found = checkpoints.inspect(case(name).drafter)
    assert f", K {found.facts['K']} (on: {', '.join(SWITCHES[name])}), 1 layer of width" in found.summary
    stated = dict(switch.split(" ") for switch in found.facts["switches"].split(", "))
    assert len(stated) == 6
    assert {switch for switch, value in stated.items() if value == "true"} == set(SWITCHES[name])


def test_every_method_of_a_layout_makes_drafters_of_checkpoints() -> None:
    methods = {method for layout in loader.modules() for method in layout.METHODS}
    modules = [importlib.import_module(f"draftboard_drafters.{method}") for method in methods]
    assert methods
    assert all(callable(module.drafter) for module in modules)
