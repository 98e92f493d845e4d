"""MTP as Qwen3-Next, Qwen3.5 and their successors carry it: tensors `mtp.*` among the target's own.

Told by the key `mtp.fc.weight`; the target's fields may be nested in `text_config`. The module is one
full-attention layer, also where most of the target's layers are linear attention: its norms multiply by
1 + w, and its queries come with a gate. The embedding stands before the feature.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Plan, Shapes, Spec

NAME = "Qwen"
METHODS = ("mtp",)

_KEYS = serial.MtpKeys(
    fuse="mtp.fc.weight",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    final_norm="mtp.norm.weight",
    embedding="mtp.embed_tokens.weight",
    head="mtp.lm_head.weight",
    layer="mtp.layers.0.",
)
_OTHERS = ("model.", "lm_head.", "visual.")


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for the MTP module in a Qwen target's files; UserError for one that cannot be run."""
    if _KEYS.fuse not in shapes:
        return None
    text = config.section("text_config") if "text_config" in config else config
    return serial.inside_target(text, shapes, NAME, _KEYS, modules="mtp_num_hidden_layers", others=_OTHERS)


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """Raises UserError: this layout has no file of its own."""
    raise serial.never_alone(NAME)
