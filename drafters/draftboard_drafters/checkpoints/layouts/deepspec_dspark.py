"""DSpark and DFlash as DeepSpec publishes them: one flat class with embedding and head
(github.com/deepseek-ai/DeepSpec).

Told by `architectures: ["Qwen3DSparkModel"]`, which both methods use: `markov_rank` 0 without a confidence
head is DFlash. Tap ids count block outputs, -1 is the embedding. The anchor's slot predicts the token after
it, so a block of B drafts B. Embedding and head are stored, as frozen copies of the target's.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters._layers import Sight
from draftboard_drafters.checkpoints import fields, parallel
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.markov import markov_fields, markov_switches
from draftboard_drafters.checkpoints.record import Parallel, Plan, Shapes, Spec

NAME = "DeepSpec"
METHODS = ("dflash", "dspark")

_GEMMA = "its layers are Gemma's (scaled embeddings, four norms a layer, capped logits), not implemented"


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for a DeepSpec DSpark or DFlash; UserError for one on another model family."""
    names = config.words("architectures")
    if "Gemma4DSparkModel" in names:
        raise config.refuse("DSpark for Gemma 4 in DeepSpec layout", _GEMMA)
    if "Qwen3DSparkModel" not in names:
        return None
    layers = config.count("num_hidden_layers")
    if fields.SLIDING in fields.layer_types(config, layers):
        raise config.refuse(
            "DSpark in DeepSpec layout", "it has sliding layers, for which the layout has no rule"
        )
    block = Parallel(
        block_size=config.count("block_size"),
        mask_id=config.count("mask_token_id", least=0),
        anchor_predicts=True,
        sights=(Sight(),) * layers,
        **markov_switches(config),
    )
    vocab_size, of = config.count("vocab_size"), config.maybe("num_target_layers", int)
    spec = Spec(
        method="dflash" if block.markov is None else "dspark",
        layout=NAME,
        taps=fields.output_taps(config, "target_layer_ids", of),
        k=block.drafts,
        geometry=fields.geometry(config, qk_norm=True),
        rope=fields.rope(config),
        layers=layers,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        num_target_layers=of,
        verifier=config.maybe("target_model_name_or_path", str),
        parallel=block,
    )
    return Plan(spec, parallel.tensors(spec, embedding=None, head=None))


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """config.json of a DFlash or DSpark in this layout."""
    block = spec.parallel
    assert block is not None
    return {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": block.block_size,
        "mask_token_id": block.mask_id,
        "num_anchors": 512,
        "num_target_layers": spec.num_target_layers,
        "rope_parameters": dict(spec.rope.parameters),
        "target_layer_ids": [tap - 1 for tap in spec.taps],
        "target_model_name_or_path": spec.verifier,
        **markov_fields(block),
        **fields.model_fields(spec, dtype, (fields.FULL,) * spec.layers, None),
    }
