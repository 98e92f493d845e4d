"""A checkpoint beside a target: does it fit, and which of its tensors are its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_files import DEEPSPEC, SPECULATORS, ZLAB, changed
from draftboard.drafter import UserError
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard_drafters import checkpoints, dflash, dspark
from draftboard_drafters.checkpoints.random import random_block_drafter
from golden import case, golden_target
from tiny import tiny_model, tiny_target


def test_copies_of_the_targets_tensors_are_not_kept() -> None:
    """DeepSpec's files hold the target's embedding and head: the target's own are used."""
    target, found = golden_target("qwen3_tiny"), checkpoints.load(case(DEEPSPEC).drafter)
    served = checkpoints.serve(found, target)
    assert found.tensors.keys() - served.tensors.keys() == {"embed_tokens.weight", "lm_head.weight"}
    floats = [t.numel() for name, t in found.tensors.items() if name in served.tensors]
    assert served.weights.bytes == 4 * sum(floats)
    assert served.weights.sha256 == found.sha256
    assert served.vocabulary.logits == target.head


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_tensors_of_the_drafters_own_are_used(name: str) -> None:
    """One changed value is enough to make them its own."""
    target, found = golden_target("qwen3_tiny"), checkpoints.load(case(DEEPSPEC).drafter)
    own = found.tensors[name].clone()
    own[200, 5] += 1
    served = checkpoints.serve(dataclasses.replace(found, tensors={**found.tensors, name: own}), target)
    assert torch.equal(served.tensors[name], own.float())
    embedded = served.vocabulary.embed(torch.tensor([200])), target.embed(torch.tensor([200]))
    logits = served.vocabulary.logits(torch.ones(1, 64)), target.head(torch.ones(1, 64))
    assert torch.equal(*embedded) == (name == "lm_head.weight")
    assert torch.equal(logits[0][0, :200], logits[1][0, :200])
    assert torch.equal(*logits) == (name == "embed_tokens.weight")


def test_a_reduced_head_is_the_drafters_own() -> None:
    served = checkpoints.serve(checkpoints.load(case(SPECULATORS).drafter), golden_target("qwen3_tiny"))
    assert "lm_head.weight" in served.tensors and "embed_tokens.weight" not in served.tensors
    ids = served.vocabulary.target_ids
    assert ids is not None and ids[:4].tolist() == [0, 3, 4, 5]


FITS: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 4}, r"with layers: 8, and 'tiny-qwen3-0' has 4"),
    "taps": ({"num_target_layers": None}, r"the distinct taps \(1, 4, 7\), and .* has 0 to 3"),
    "vocabulary": ({"vocab_size": 300, "num_hidden_layers": 8}, r"vocabulary size 256, and .* has 300"),
    "width": ({"num_hidden_layers": 8, "hidden_size": 32}, r"hidden size 64, and .* has 32"),
    "mask": ({"num_hidden_layers": 8, "hidden_size": 64, "mask_id": 999}, r"a mask token numbered 999"),
}


@pytest.mark.parametrize("what", FITS)
def test_a_checkpoint_of_another_target_is_refused(what: str) -> None:
    changes, message = FITS[what]
    found = checkpoints.load(case(ZLAB).drafter)
    if "num_target_layers" in changes:
        found = dataclasses.replace(found, num_target_layers=None)
    if "mask_id" in changes and found.parallel is not None:
        found = dataclasses.replace(found, parallel=dataclasses.replace(found.parallel, mask_id=999))
    ours = {"num_target_layers", "mask_id"}
    sizes = {key: value for key, value in changes.items() if key not in ours}
    target = tiny_target("qwen3", **{"vocab_size": 256, **sizes})
    with pytest.raises(UserError, match=message):
        checkpoints.serve(found, target)


def test_disagreements_are_warned_about(tmp_path: Path) -> None:
    def fewer(config: dict[str, Any]) -> None:
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 4
        config["transformer_layer_config"]["max_position_embeddings"] = 100

    found = checkpoints.load(changed(tmp_path, SPECULATORS, fewer))
    with pytest.warns(UserWarning) as caught:
        checkpoints.serve(found, golden_target("qwen3_tiny"))
    texts = " ".join(str(one.message) for one in caught)
    assert "asks for 4 tokens a round, the block drafts 5" in texts
    assert "trained on up to 100 positions; beyond that, of 128, drafts may be worse" in texts


def test_float16_is_warned_about() -> None:
    target: Any = tiny_target()
    target.dtype = torch.float16
    made = random_block_drafter("dflash", target, block_size=4, anchor_predicts=False)
    with pytest.warns(UserWarning, match="states overflow float16"):
        checkpoints.serve(made, target)


@pytest.mark.parametrize("module", [dflash, dspark])
@torch.inference_mode()
def test_a_drafter_computes_in_the_targets_dtype(module: Any) -> None:
    model = tiny_model("qwen3").bfloat16()
    target = TargetModel(model, id="narrow", max_context=64, stop_ids=frozenset(), fused=False)
    drafter = module.example(target, Sampler(Sampling(1.0), Randomness(0, target.device)))
    target.begin(drafter.taps)
    tokens = torch.tensor([3, 1, 4, 1, 5])
    drafter.prefill(tokens, target.prefill(tokens[:-1])[1])
    draft = drafter.propose(3)
    assert drafter.backbone.cache.keys.dtype == torch.bfloat16
    assert draft.probs is not None and draft.probs.dtype == torch.float32
    assert draft.probs.sum(-1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    assert drafter.weights.origin == "random"
