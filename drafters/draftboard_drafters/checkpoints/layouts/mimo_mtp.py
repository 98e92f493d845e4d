"""MTP as MiMo carries it: tensors `model.mtp_layers.0.*` among the target's own.

Told by the key `model.mtp_layers.0.input_proj.weight`. The feature stands before the embedding, opposite to
the other layouts; the layer is Qwen2's, with biases on queries, keys and values.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Plan, Shapes, Spec

NAME = "MiMo"
METHODS = ("mtp",)

_LAYER = "model.mtp_layers.0."
_KEYS = serial.MtpKeys(
    fuse=f"{_LAYER}input_proj.weight",
    embedding_norm=f"{_LAYER}token_layernorm.weight",
    hidden_norm=f"{_LAYER}hidden_layernorm.weight",
    final_norm=f"{_LAYER}final_layernorm.weight",
    embedding=f"{_LAYER}embed_tokens.weight",
    head=f"{_LAYER}lm_head.weight",
    layer=_LAYER,
)
_OTHERS = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for the MTP module in a MiMo target's files; UserError for one that cannot be run."""
    if _KEYS.fuse not in shapes:
        return None
    return serial.inside_target(
        config,
        shapes,
        NAME,
        _KEYS,
        modules="num_nextn_predict_layers",
        others=_OTHERS,
        embedding_first=False,
    )


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """Raises UserError: this layout has no file of its own."""
    raise serial.never_alone(NAME)
