"""Export in the published layouts, bit for bit, and a refusal of what a layout cannot say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpoint_files import BLOCK_DRAFTERS, DEEPSPEC, RNN, SPECULATORS, ZLAB, changed, read
from draftboard.drafter import UserError
from draftboard_drafters import checkpoints
from draftboard_drafters.checkpoints.random import random_block_drafter
from golden import case
from tiny import tiny_target


@pytest.mark.parametrize("name", BLOCK_DRAFTERS)
def test_export_then_load_is_bit_equal(name: str, tmp_path: Path) -> None:
    before = checkpoints.load(case(name).drafter)
    checkpoints.export(before, tmp_path, before.layout)
    after = checkpoints.load(str(tmp_path))
    assert dataclasses.replace(after, path=before.path) == before
    written, original = load_file(tmp_path / "model.safetensors"), read(name)[1]
    assert written.keys() == original.keys()
    assert all(torch.equal(written[key], original[key]) for key in original)


@pytest.mark.parametrize("name", [ZLAB, "deepspec_dflash", DEEPSPEC, RNN])
def test_any_block_drafter_can_be_written_for_speculators(name: str, tmp_path: Path) -> None:
    before = checkpoints.load(case(name).drafter)
    checkpoints.export(before, tmp_path, "speculators")
    after = checkpoints.load(str(tmp_path))
    assert (after.layout, after.taps, after.k) == ("speculators", before.taps, before.k)
    assert (after.parallel, after.rope, after.sha256) == (before.parallel, before.rope, before.sha256)


def test_windows_survive_an_export(tmp_path: Path) -> None:
    def slide(config: dict[str, Any]) -> None:
        config.update(
            layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=6
        )

    before = checkpoints.load(changed(tmp_path / "a", ZLAB, slide))
    checkpoints.export(before, tmp_path / "b", "z-lab")
    assert checkpoints.load(str(tmp_path / "b")).parallel == before.parallel
    with pytest.raises(UserError, match=r"the layout cannot say parallel = .*; choose another layout"):
        checkpoints.export(before, tmp_path / "c", "speculators")
    assert not (tmp_path / "c").exists()


EXPORT_FAULTS: dict[str, tuple[str, str, str]] = {
    "reduced vocabulary": (SPECULATORS, "z-lab", r"the layout cannot say draft_vocab_size = 160"),
    "slots": ("deepspec_dflash", "z-lab", r"the layout cannot say k = 7; it would be read as 6"),
    "no embedding": (ZLAB, "DeepSpec", r"the layout cannot say k = 7; it would be read as 8"),
    "no such layout": (
        ZLAB,
        "zlab",
        r"layout 'zlab' not found in the layouts for dflash; did you mean 'z-lab'",
    ),
    "not this method's": (DEEPSPEC, "z-lab", r"layout 'z-lab' not found in the layouts for dspark"),
}


@pytest.mark.parametrize("fault", EXPORT_FAULTS)
def test_what_a_layout_cannot_say_is_not_written(fault: str, tmp_path: Path) -> None:
    name, layout, message = EXPORT_FAULTS[fault]
    with pytest.raises(UserError, match=message):
        checkpoints.export(checkpoints.load(case(name).drafter), tmp_path / "x", layout)
    assert not (tmp_path / "x").exists()


def test_export_needs_the_tensors_that_the_layout_stores(tmp_path: Path) -> None:
    made = random_block_drafter("dflash", tiny_target(), block_size=4, anchor_predicts=True)
    with pytest.raises(UserError, match=r"missing 'embed_tokens.weight', 'lm_head.weight'"):
        checkpoints.export(made, tmp_path / "x", "DeepSpec")


def test_where_weights_come_from_is_kept(tmp_path: Path) -> None:
    made = random_block_drafter("dflash", tiny_target(), block_size=4, anchor_predicts=False)
    checkpoints.export(dataclasses.replace(made, origin="trained here"), tmp_path, "z-lab")
    assert checkpoints.load(str(tmp_path)).origin == "trained here"
    assert made.origin == "random"
