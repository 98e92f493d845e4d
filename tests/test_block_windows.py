"""Layers that see a window: both published rules against a plain computation, and what ignoring them does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_files import SPECULATORS, ZLAB, changed
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints, dflash
from draftboard_drafters._layers import Sight
from draftboard_drafters.checkpoints import Checkpoint
from golden import case, golden_target
from plain_block import Sees, plain_block

WINDOW = 4
TEXT = case(ZLAB).run("prompt2")["prompt_ids"][:15]
ZLAB_TYPES = ["full_attention", "sliding_attention", "full_attention"]


def zlab(folder: Path, **changes: Any) -> Checkpoint:
    slide = {"layer_types": ZLAB_TYPES, "sliding_window": WINDOW, **changes}
    return checkpoints.load(changed(folder, ZLAB, lambda config: config.update(slide)))


def speculators(folder: Path, **changes: Any) -> Checkpoint:
    def slide(config: dict[str, Any]) -> None:
        stack = {"layer_types": ["sliding_attention"] * 2, "sliding_window": WINDOW}
        config["transformer_layer_config"].update(stack)
        config.update(changes)

    return checkpoints.load(changed(folder, SPECULATORS, slide))


RULES: dict[str, tuple[Any, dict[str, Any], Sees]] = {
    "z-lab": (
        zlab,
        {},
        lambda layer, row, at, anchor: layer != 1 or (at <= row and row - at < WINDOW),
    ),
    "z-lab, causal everywhere": (
        zlab,
        {"is_causal": True},
        lambda layer, row, at, anchor: at <= row and (layer != 1 or row - at < WINDOW),
    ),
    "z-lab, causal nowhere": (
        zlab,
        {"is_causal": False},
        lambda layer, row, at, anchor: layer != 1 or abs(row - at) < WINDOW,
    ),
    "speculators": (
        speculators,
        {},
        lambda layer, row, at, anchor: anchor - WINDOW <= at <= row,
    ),
    "speculators, not causal": (
        speculators,
        {"sliding_window_non_causal": True},
        lambda layer, row, at, anchor: at >= anchor - WINDOW,
    ),
}


@torch.inference_mode()
def drafted_states(checkpoint: Checkpoint) -> Tensor:
    target = golden_target("qwen3_tiny")
    drafter = dflash.DFlash(checkpoint, target, Sampler(Sampling(), Randomness(0, target.device)), None)
    target.begin(drafter.taps)
    tokens = torch.tensor(TEXT)
    drafter.prefill(tokens[:10], target.prefill(tokens[:9])[1])
    drafter.commit(tokens[10:], target.extend(tokens[9:-1])[1])
    return drafter.backbone.block()


@pytest.mark.parametrize("rule", RULES)
@torch.inference_mode()
def test_a_window_is_the_published_rule(rule: str, tmp_path: Path) -> None:
    make, changes, sees = RULES[rule]
    checkpoint = make(tmp_path, **changes)
    expected = plain_block(checkpoint, golden_target("qwen3_tiny"), TEXT, sees)[1:]
    torch.testing.assert_close(drafted_states(checkpoint), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [zlab, speculators])
def test_ignoring_a_window_is_caught(make: Any, tmp_path: Path) -> None:
    """The states with and without the window are far apart once the text is longer than it."""
    checkpoint = make(tmp_path)
    assert checkpoint.parallel is not None
    blind = dataclasses.replace(checkpoint.parallel, sights=(Sight(),) * checkpoint.layers)
    apart = drafted_states(checkpoint) - drafted_states(dataclasses.replace(checkpoint, parallel=blind))
    assert apart.abs().max() > 0.1


@torch.inference_mode()
def test_without_a_window_the_plain_computation_agrees() -> None:
    checkpoint = checkpoints.load(case(ZLAB).drafter)
    expected = plain_block(checkpoint, golden_target("qwen3_tiny"), TEXT, lambda *_: True)[1:]
    torch.testing.assert_close(drafted_states(checkpoint), expected, atol=1e-4, rtol=1e-4)
