"""The head of a target gives the target's own logits, whatever its model does to them after the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftboard.drafter import FINAL_NORM
from draftboard.errors import UserError
from draftboard.measure.readout import AFTER
from draftboard.measure.target import TargetModel
from tiny import tiny_model

AFTERWARDS: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.25, "sliding_window": 256},
    "gemma2": {"final_logit_softcapping": 3.0, "sliding_window": 256},
    "gemma3_text": {"final_logit_softcapping": 2.0, "sliding_window": 256},
    "granite": {"logits_scaling": 8.0},
    "minicpm3": {"num_key_value_heads": 4, "dim_model_base": 8},
}
PLAIN: dict[str, dict[str, Any]] = {
    "gpt_neox": {},
    "phi": {},
    "gpt2": {},
    "gemma3_text": {"sliding_window": 256},
}
IDS = torch.tensor([3, 8, 1, 90])


def module_target(model: Any) -> TargetModel:
    return TargetModel(model, id="tiny", max_context=64, stop_ids=frozenset(), fused=False)


@torch.inference_mode()
def error_of_head(target: TargetModel) -> float:
    """The largest difference between what `head` makes of the last states and the logits of the forward."""
    target.begin((FINAL_NORM,))
    logits, features = target.extend(IDS)
    return float((target.head(features[:, 0]) - logits).abs().max())


@pytest.mark.parametrize(("family", "changes"), [*AFTERWARDS.items(), *PLAIN.items()])
def test_the_head_gives_the_models_own_logits(family: str, changes: dict[str, Any]) -> None:
    assert error_of_head(module_target(tiny_model(family, **changes))) < 1e-5


@pytest.mark.parametrize(("family", "changes"), AFTERWARDS.items())
def test_without_what_comes_after_the_head_the_logits_differ(
    family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(AFTER):
        monkeypatch.delitem(AFTER, name)
    target = module_target(tiny_model(family, **changes))
    with pytest.raises(UserError):
        error_of_head(target)
    target.forward.readable = True  # type: ignore[attr-defined]
    assert error_of_head(target) > 0.05


def test_a_model_with_another_readout_cannot_be_asked_for_its_head() -> None:
    """HyperCLOVA X multiplies by the number that others divide by. It decodes as ever; drafters that read
    through its head are refused."""
    model = tiny_model("hyperclovax", logits_scaling=8.0)
    target = module_target(model)
    with torch.inference_mode():
        target.begin(())
        expected = model(input_ids=IDS[None]).logits[0]
        torch.testing.assert_close(target.extend(IDS)[0], expected, atol=1e-4, rtol=0)
    with pytest.raises(
        UserError, match=r"HyperCLOVAXForCausalLM turns its last state into logits by more than"
    ):
        error_of_head(target)


def test_rounding_to_bfloat16_is_no_other_readout() -> None:
    for family, changes in AFTERWARDS.items():
        target = module_target(tiny_model(family, **changes).to(torch.bfloat16))
        assert error_of_head(target) < 0.05


def test_comparing_leaves_no_hook_behind() -> None:
    model = tiny_model("gemma2", sliding_window=256)
    module_target(model)
    assert not any(module._forward_hooks for module in model.modules())
