"""EAGLE-3 as DeepSpec publishes it: five taps, full vocabulary, query and key norms
(github.com/deepseek-ai/DeepSpec).

Told by `architectures: ["Qwen3Eagle3Model"]`. Tap ids count block outputs. Embedding and head are stored, the
embedding as a frozen copy of the target's. The raw state is recycled.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import fields, serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Plan, Serial, Shapes, Spec

NAME = "DeepSpec"
METHODS = ("eagle3",)

_GEMMA = "its layers are Gemma's (scaled embeddings, four norms a layer, capped logits), not implemented"


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for a DeepSpec EAGLE-3; UserError for one on another model family."""
    names = config.words("architectures")
    if "Gemma4Eagle3Model" in names:
        raise config.refuse("EAGLE-3 for Gemma 4 in DeepSpec layout", _GEMMA)
    if "Qwen3Eagle3Model" not in names:
        return None
    layers = config.need("draft_num_hidden_layers", int)
    if layers != 1:
        raise config.refuse("EAGLE-3 in DeepSpec layout", f"it has {layers} layers, the layout defines one")
    vocab_size, of = config.count("vocab_size"), config.maybe("num_target_layers", int)
    spec = Spec(
        method="eagle3",
        layout=NAME,
        taps=fields.output_taps(config, "target_layer_ids", of),
        k=config.count("ttt_length"),
        geometry=fields.geometry(config, qk_norm=True),
        rope=fields.rope(config),
        layers=1,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        num_target_layers=of,
        verifier=config.maybe("target_model_name_or_path", str),
        serial=Serial(),
    )
    hidden = spec.geometry.hidden_size
    return Plan(spec, serial.eagle3(spec, hidden, embedding=None, first="layers.0."))


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """config.json of an EAGLE-3 in this layout."""
    return {
        **fields.model_fields(spec, dtype, (fields.FULL,), None),
        "architectures": ["Qwen3Eagle3Model"],
        "draft_num_hidden_layers": spec.layers,
        "num_target_layers": spec.num_target_layers,
        "rope_parameters": dict(spec.rope.parameters),
        "target_layer_ids": [tap - 1 for tap in spec.taps],
        "target_model_name_or_path": spec.verifier,
        "ttt_length": spec.k,
    }
