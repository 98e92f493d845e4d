"""The part of config.json that all layouts share with transformers: sizes, rotary embedding, layer types."""

from __future__ import annotations

from typing import Any

from draftboard_drafters._layers import Geometry, Rope
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import Spec

FULL, SLIDING = "full_attention", "sliding_attention"


def geometry(config: Config, **switches: Any) -> Geometry:
    """Sizes and switches of the drafter's layers; `switches` are what the layout implies.

    head_dim is hidden size / heads where the file leaves it out, as in transformers; the tensors' shapes
    are checked against it either way. Raises UserError for an activation other than SiLU, and for sizes that
    no layer can have.
    """
    activation = config.get("hidden_act", str, "silu")
    if activation != "silu":
        raise config.refuse("a drafter", f"its MLP uses {activation}, and only silu is implemented")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of the {heads} heads", kv_heads)
    biased = config.get("attention_bias", bool, False)
    return Geometry(
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.count("head_dim", hidden // heads),
        eps=config.positive("rms_norm_eps"),
        **{"attention_bias": biased, "output_bias": biased, **switches},
    )


def rope(config: Config) -> Rope:
    """The rotary embedding, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.

    Raises UserError when the base is stated nowhere, or differently in the two places, or is none.
    """
    new, old = config.section("rope_parameters").data, config.section("rope_scaling").data
    if any(isinstance(value, dict) for value in new.values()):
        raise config.refuse("a drafter", "its rotary embedding differs between layer types")
    stated: dict[str, Any] = {}
    for place in (_flat(config), old, new):
        for key, value in place.items():
            name = "rope_type" if key == "type" else key
            if stated.get(name, value) != value:
                raise config.wrong(name, f"one value; it is {stated[name]!r} elsewhere in the file", value)
            stated[name] = value
    merged = Config(stated, config.where)
    read = {"rope_type": merged.get("rope_type", str, "default"), "rope_theta": merged.positive("rope_theta")}
    return Rope({**stated, **read}, config.count("max_position_embeddings"))


def _flat(config: Config) -> dict[str, Any]:
    names = ("rope_theta", "partial_rotary_factor")
    return {name: config.data[name] for name in names if name in config}


def layer_types(config: Config, layers: int) -> tuple[str, ...]:
    """The attention type of each layer; full attention where the file does not say."""
    types = tuple(config.get("layer_types", list, [FULL] * layers))
    if len(types) != layers or any(kind not in (FULL, SLIDING) for kind in types):
        raise config.wrong("layer_types", f"{layers} times {FULL} or {SLIDING}", types)
    return types


def window(config: Config) -> int:
    """The width of sliding layers. Raises UserError when it is absent or none."""
    return config.count("sliding_window")


def output_taps(config: Config, name: str, num_target_layers: int | None) -> tuple[int, ...]:
    """Taps from a list of ids that count block outputs: id i is the output of block i, -1 the embedding.

    Raises UserError for the last block: transformers hands out its output normed, other engines raw, and the
    file does not say which the drafter was trained on.
    """
    ids = config.ids(name, least=-1)
    if num_target_layers is not None and max(ids) >= num_target_layers - 1:
        raise config.wrong(name, f"ids from -1 to {num_target_layers - 2}, below the last block", list(ids))
    return tuple(i + 1 for i in ids)


def model_fields(spec: Spec, dtype: str, types: tuple[str, ...], width: int | None) -> dict[str, Any]:
    """The fields that `geometry` and `layer_types` read, as transformers writes them for a Qwen3 stack.

    The rotary embedding is left to the layout: files differ in where it stands.
    """
    shape = spec.geometry
    return {
        "attention_bias": shape.attention_bias,
        "attention_dropout": 0.0,
        "dtype": dtype,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "layer_types": list(types),
        "max_position_embeddings": spec.rope.max_position_embeddings,
        "max_window_layers": spec.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "sliding_window": width,
        "tie_word_embeddings": False,
        "use_sliding_window": width is not None,
        "vocab_size": spec.vocab_size,
    }
