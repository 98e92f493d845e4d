"""MTP as DeepSeek-V3, GLM-4.5 and their successors carry it: one more layer after the target's last.

Told by the key `model.layers.<L>.eh_proj.weight`, L being the target's `num_hidden_layers`. The embedding
stands before the feature; embedding and head may be stored again with the layer. DeepSeek's own modules have
latent attention and experts, GLM's have experts: they are refused by name.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Plan, Shapes, Spec

NAME = "DeepSeek"
METHODS = ("mtp",)


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for the MTP module in a target's files; UserError for one that cannot be run."""
    if not any(key.endswith(".eh_proj.weight") for key in shapes):
        return None
    layers = config.need("num_hidden_layers", int)
    others = (
        "model.embed_tokens.",
        "model.norm.",
        "lm_head.",
        *(f"model.layers.{i}." for i in range(layers)),
    )
    keys = _keys(f"model.layers.{layers}.")
    return serial.inside_target(config, shapes, NAME, keys, modules="num_nextn_predict_layers", others=others)


def _keys(layer: str) -> serial.MtpKeys:
    return serial.MtpKeys(
        fuse=f"{layer}eh_proj.weight",
        embedding_norm=f"{layer}enorm.weight",
        hidden_norm=f"{layer}hnorm.weight",
        final_norm=f"{layer}shared_head.norm.weight",
        embedding=f"{layer}embed_tokens.weight",
        head=f"{layer}shared_head.head.weight",
        layer=layer,
    )


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """Raises UserError: this layout has no file of its own."""
    raise serial.never_alone(NAME)
