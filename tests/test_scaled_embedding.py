"""A target that scales its embeddings on their way in does not lend them to drafters; it decodes as ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftboard.errors import UserError
from draftboard.measure.module_forward import ModuleForward
from draftboard.measure.sampling import Randomness, Sampler
from draftboard.measure.target import TargetModel
from draftboard.record.records import Sampling
from draftboard_drafters.checkpoints.serving import _same_embedding
from shipped import MODULES
from tiny import plain_greedy, tiny_model

SCALED: dict[str, tuple[dict[str, Any], float]] = {
    "granite": ({"embedding_multiplier": 12.0}, 12.0),
    "hyperclovax": ({"embedding_multiplier": 0.5}, 0.5),
}
PLAIN: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "gpt_neox": {},
    "cohere": {},
    "granite": {"embedding_multiplier": 1.0},
    "gemma3_text": {"sliding_window": 256},
}
SHARING = ["eagle3", "mtp", "dflash", "dspark"]
IDS = torch.tensor([3, 8, 1, 90])


def module_target(family: str, layers: int = 3, **changes: Any) -> TargetModel:
    model = tiny_model(family, num_hidden_layers=layers, **changes)
    return TargetModel(model, id="tiny", max_context=64, stop_ids=frozenset(), fused=False)


@pytest.mark.parametrize("family", SCALED)
def test_the_factor_is_found_and_the_embedding_refused(family: str) -> None:
    changes, factor = SCALED[family]
    target = module_target(family, **changes)
    assert isinstance(target.forward, ModuleForward)
    assert target.forward.scale == pytest.approx(factor, rel=1e-5)
    with pytest.raises(UserError, match=rf"multiplies its embeddings by {factor:.4g} on their way"):
        target.embed(IDS)


@pytest.mark.parametrize("family", PLAIN)
def test_what_enters_unscaled_is_lent(family: str) -> None:
    """Positions that are added, as GPT-2's, are no factor; Gemma scales within its embedding."""
    target = module_target(family, **PLAIN[family])
    assert isinstance(target.forward, ModuleForward) and target.forward.scale == 1.0
    with torch.inference_mode():
        target.begin((0,))
        _, entering = target.extend(IDS)
        if family != "gpt2":
            assert torch.equal(target.embed(IDS), entering[:, 0])
    assert not any(module._forward_pre_hooks for module in target.forward.model.modules())


@pytest.mark.parametrize("name", SHARING)
def test_drafters_that_share_the_embedding_are_refused_when_they_are_built(name: str) -> None:
    target = module_target("granite", layers=8, embedding_multiplier=12.0)
    sampler = Sampler(Sampling(), Randomness(0, torch.device("cpu")))
    with pytest.raises(UserError, match="choose one with embeddings of its own"):
        MODULES[name].example(target, sampler)
    MODULES[name].example(module_target("granite", layers=8), sampler)


def test_an_embedding_of_ones_own_is_no_copy_of_a_scaled_one() -> None:
    target = module_target("granite", embedding_multiplier=12.0)
    own = target.forward.model.get_input_embeddings().weight  # type: ignore[attr-defined]
    assert not _same_embedding(own, target)
    assert _same_embedding(own, module_target("granite"))


def test_such_a_target_decodes_as_ever() -> None:
    changes = {"embedding_multiplier": 12.0}
    target, said = module_target("granite", **changes), []
    with torch.inference_mode():
        target.begin(())
        logits, _ = target.prefill(IDS)
        for _ in range(6):
            said.append(int(logits[-1].argmax()))
            logits, _ = target.extend(torch.tensor(said[-1:]))
    assert said == plain_greedy(tiny_model("granite", **changes), IDS.tolist(), 6)
