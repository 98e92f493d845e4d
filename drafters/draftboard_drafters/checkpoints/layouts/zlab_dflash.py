"""DFlash as z-lab publishes it: a Qwen3-style stack without embedding and head (github.com/z-lab/dflash).

Told by `architectures: ["DFlashDraftModel"]` without `speculators_model_type`. `block_size`, `mask_token_id`
and `target_layer_ids` stand at the top level or in `dflash_config`. Tap ids count block outputs. Slot j
predicts the token at slot j, so a block of B drafts B - 1. Layers of type `sliding_attention` are causal and
windowed from each slot, unless `is_causal` says otherwise for all layers.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters._layers import Sight
from draftboard_drafters.checkpoints import fields, parallel
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import TARGETS, Parallel, Plan, Shapes, Spec

NAME = "z-lab"
METHODS = ("dflash",)

_SUCCESSORS = {"DFlash2DraftModel": "DFlash 2", "DSparkDraftModel": "DSpark in SpecForge layout"}
_NEUTRAL = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0.0}
"""Scalings for some targets' embeddings and logits, and the values at which they do nothing."""


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for a z-lab DFlash; UserError for its relatives."""
    names = config.words("architectures")
    if "speculators_model_type" in config or not {*names} & {"DFlashDraftModel", *_SUCCESSORS}:
        return None
    config = config.merged("dflash_config")
    _refuse_relatives(config, names[0])
    layers = config.count("num_hidden_layers")
    block = Parallel(
        block_size=config.count("block_size", least=2),
        mask_id=config.count("mask_token_id", least=0),
        anchor_predicts=False,
        sights=_sights(config, layers),
    )
    vocab_size, of = config.count("vocab_size"), config.maybe("num_target_layers", int)
    spec = Spec(
        method="dflash",
        layout=NAME,
        taps=fields.output_taps(config, "target_layer_ids", of),
        k=block.drafts,
        geometry=fields.geometry(config, qk_norm=True),
        rope=fields.rope(config),
        layers=layers,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        num_target_layers=of,
        parallel=block,
    )
    return Plan(spec, parallel.tensors(spec, embedding=TARGETS, head=TARGETS))


def _refuse_relatives(config: Config, architecture: str) -> None:
    if architecture in _SUCCESSORS:
        raise config.refuse(_SUCCESSORS[architecture], "it has other tensors and another loop")
    projector = config.get("projector_type", str, "dflash")
    if projector != "dflash":
        raise config.refuse(f"DFlash with a {projector} projector", "the projector is not implemented")
    for name, neutral in _NEUTRAL.items():
        if config.get(name, float, neutral) != neutral:
            raise config.refuse("DFlash", f"{name} is {config.data[name]!r}, which is not implemented")


def _sights(config: Config, layers: int) -> tuple[Sight, ...]:
    causal = config.maybe("is_causal", bool)
    return tuple(
        Sight(causal=True if causal is None else causal, window=fields.window(config))
        if kind == fields.SLIDING
        else Sight(causal=bool(causal))
        for kind in fields.layer_types(config, layers)
    )


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """config.json of a DFlash in this layout."""
    block = spec.parallel
    assert block is not None
    windows = [sight.window for sight in block.sights]
    types = tuple(fields.FULL if window is None else fields.SLIDING for window in windows)
    theta = spec.rope.parameters["rope_theta"]
    scaling = {key: value for key, value in spec.rope.parameters.items() if key != "rope_theta"}
    return {
        "architectures": ["DFlashDraftModel"],
        "block_size": block.block_size,
        "dflash_config": {
            "mask_token_id": block.mask_id,
            "target_layer_ids": [tap - 1 for tap in spec.taps],
        },
        "num_target_layers": spec.num_target_layers,
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "rope_theta": theta,
        **({"is_causal": _one_rule(block.sights)} if _one_rule(block.sights) is not None else {}),
        **fields.model_fields(spec, dtype, types, max((w for w in windows if w is not None), default=None)),
    }


def _one_rule(sights: tuple[Sight, ...]) -> bool | None:
    """`is_causal` where the layers differ from the layout's own rule; None where they follow it."""
    if all(sight.causal == (sight.window is not None) for sight in sights):
        return None
    return sights[0].causal
