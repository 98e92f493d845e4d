"""MTP among a target's tensors: one module in the layouts that keep it there, and what cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftboard.drafter import UserError
from draftboard.measure.loading import load_target
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints, mtp
from draftboard_drafters.checkpoints import Checkpoint, Plan, serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.layouts import deepseek_mtp, mimo_mtp, speculators_serial
from draftboard_drafters.checkpoints.random import randomised
from draftboard_drafters.checkpoints.serial import MtpKeys
from golden import FOLDER
from tiny import SIZES, tiny_target
from tiny_checkpoint import save_checkpoint

HIDDEN = SIZES["hidden_size"]
TINY = {**{k: v for k, v in SIZES.items() if not k.endswith("_id")}, "model_type": "qwen2"}
MODEL = {**TINY, "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}


def module_tensors(keys: MtpKeys, feature_first: bool) -> dict[str, Tensor]:
    """One and the same Qwen2-style module under the keys of a layout."""
    plain = a_module().tensors
    own = {"fc": keys.fuse, "embedding_norm": keys.embedding_norm, "hidden_norm": keys.hidden_norm}
    names = {f"{name}.weight": key for name, key in {**own, "norm": keys.final_norm}.items()}
    renamed = {
        names.get(name, name.replace("layers.0.", keys.layer)): tensor for name, tensor in plain.items()
    }
    if feature_first:
        renamed[keys.fuse] = renamed[keys.fuse].roll(HIDDEN, 1)
    return renamed


def a_module() -> Checkpoint:
    config = Config(MODEL, "a module")
    spec = serial.mtp_spec(config, "none", serial.layer_geometry(config, "a module"), 1)
    return randomised(Plan(spec, serial.mtp(spec, serial.PLAIN_KEYS)))


def module_folder(layout: str, folder: Path) -> str:
    """The module in a layout; inside a target's files, with some of the target's tensors."""
    trunk = {"model.layers.0.mlp.up_proj.weight": torch.zeros(2), "lm_head.weight": torch.zeros(3)}
    if layout == "MiMo":
        return save_checkpoint(folder, MODEL, {**trunk, **module_tensors(mimo_mtp._KEYS, True)})
    if layout == "DeepSeek":
        return save_checkpoint(
            folder, MODEL, {**trunk, **module_tensors(deepseek_mtp._keys("model.layers.3."), False)}
        )
    config = {
        "speculators_model_type": "mtp",
        "transformer_layer_config": MODEL,
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 1}]},
    }
    return save_checkpoint(folder, config, module_tensors(speculators_serial._KEYS, False))


@torch.inference_mode()
def test_one_module_in_three_layouts_drafts_the_same(tmp_path: Path) -> None:
    target, sampler = tiny_target(), Sampler(Sampling(), Randomness(0, torch.device("cpu")))
    found = []
    for layout in ("speculators", "MiMo", "DeepSeek"):
        path = module_folder(layout, tmp_path / layout)
        assert checkpoints.load(path).layout == layout
        drafter = mtp.build(target, sampler, checkpoint=path, num_speculative_tokens=5)
        target.begin(drafter.taps)
        tokens = torch.tensor([5, 3, 8, 1, 9])
        drafter.prefill(tokens, target.prefill(tokens[:-1])[1])
        found.append(drafter.propose(5).tokens.tolist())
    assert found[0] == found[1] == found[2] and len(set(found[0])) > 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("self_attn.kv_a_proj_with_mqa.weight", r"DeepSeek layout.*latent attention \(MLA\)"),
        ("mlp.experts.0.up_proj.weight", r"DeepSeek layout.*experts \(MoE\)"),
        ("strange.weight", "unexpected 'model.layers.3.strange.weight'"),
    ],
)
def test_layers_after_the_last_that_cannot_be_run_are_refused(key: str, message: str, tmp_path: Path) -> None:
    tensors = module_tensors(deepseek_mtp._keys("model.layers.3."), False)
    path = save_checkpoint(tmp_path, MODEL, {**tensors, f"model.layers.3.{key}": torch.zeros(1)})
    with pytest.raises(UserError, match=message):
        checkpoints.load(path)


def test_a_hybrid_target_is_refused_by_name() -> None:
    """Its module is read; the target itself cannot take back a rejected guess."""
    path = str(FOLDER / "targets" / "qwen3_5_tiny")
    assert checkpoints.load(path).layout == "Qwen"
    with pytest.raises(UserError, match=r"qwen3_5_text cannot be used.*linear_attention.*rolled back"):
        load_target(path, dtype=torch.float32, device=torch.device("cpu"))
