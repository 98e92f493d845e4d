"""The tensors of drafters that extrapolate one state after the other: EAGLE-3's stack and MTP's layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftboard.drafter import FINAL_NORM, UserError
from draftboard_drafters._layers import Geometry
from draftboard_drafters.checkpoints import expected, fields
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import TARGETS, Expected, Plan, Serial, Shapes, Spec

REFERENCE_TAPS = 3
"""Taps of an EAGLE-3 whose file names none; `Spec.taps_of` says which."""


def eagle3(spec: Spec, tap_width: int, *, embedding: str | None, first: str) -> tuple[Expected, ...]:
    """All tensors of an EAGLE-3.

    `tap_width` is the target's hidden size, `embedding` says where that comes from when absent, `first` is
    how the keys of the first layer begin in the file.
    """
    hidden, taps, serial = spec.geometry.hidden_size, len(spec.taps) or REFERENCE_TAPS, spec.serial
    assert serial is not None
    stack = [
        Expected("fc.weight", (hidden, taps * tap_width), "fuses the taps into a feature"),
        Expected(
            "layers.0.hidden_norm.weight", (hidden,), "norm of the feature", f"{first}hidden_norm.weight"
        ),
        Expected("norm.weight", (hidden,), "norm before the head"),
        expected.embedding(spec.vocab_size, hidden, embedding),
        expected.head(spec.draft_vocab_size, hidden, None),
        *expected.vocabulary_map(spec.draft_vocab_size, spec.vocab_size),
        *expected.decoder_layer("layers.0.", spec.geometry, at=first, width=2 * hidden),
    ]
    if serial.tap_norms:
        stack += [Expected(f"fc_norm.{i}.weight", (tap_width,), f"norm of tap {i}") for i in range(taps)]
    if serial.norm_before_fuse:
        stack.append(Expected("input_norm.weight", (taps * tap_width,), "norm of all taps together"))
    for layer in range(1, spec.layers):
        stack += expected.decoder_layer(f"layers.{layer}.", spec.geometry)
    return tuple(stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpKeys:
    """How a layout calls an MTP module's own tensors; `layer` begins the keys of its decoder layer."""

    fuse: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str
    embedding: str
    head: str
    layer: str


PLAIN_KEYS = MtpKeys(
    fuse="fc.weight",
    embedding_norm="embedding_norm.weight",
    hidden_norm="hidden_norm.weight",
    final_norm="norm.weight",
    embedding="embed_tokens.weight",
    head="lm_head.weight",
    layer="layers.0.",
)
"""As in the record."""


def mtp(spec: Spec, keys: MtpKeys) -> tuple[Expected, ...]:
    """All tensors of an MTP module. Embedding and head are the target's; copies of them are known too."""
    hidden = spec.geometry.hidden_size
    shared = {
        keys.embedding: expected.embedding(spec.vocab_size, hidden, TARGETS),
        keys.head: expected.head(spec.vocab_size, hidden, TARGETS),
    }
    return (
        Expected(PLAIN_KEYS.fuse, (hidden, 2 * hidden), "joins embedding and feature", keys.fuse),
        Expected(PLAIN_KEYS.embedding_norm, (hidden,), "norm of the embedding", keys.embedding_norm),
        Expected(PLAIN_KEYS.hidden_norm, (hidden,), "norm of the feature", keys.hidden_norm),
        Expected(PLAIN_KEYS.final_norm, (hidden,), "norm before the head", keys.final_norm),
        *(dataclasses.replace(tensor, key=key) for key, tensor in shared.items()),
        *expected.decoder_layer(PLAIN_KEYS.layer, spec.geometry, at=keys.layer),
    )


_QWEN2 = {"qk_norm": False, "attention_bias": True, "output_bias": False}
_QWEN_NEXT = {"qk_norm": True, "zero_centred_norms": True, "output_gate": True}
LAYERS: Mapping[str, Mapping[str, bool]] = {
    "llama": {"qk_norm": False},
    "qwen2": _QWEN2,
    "mimo": _QWEN2,
    "qwen3": {"qk_norm": True},
    "glm4_moe": {"qk_norm": False, "output_bias": False},
    "qwen3_next": _QWEN_NEXT,
    "qwen3_5": _QWEN_NEXT,
    "qwen3_5_text": _QWEN_NEXT,
}
"""Switches of a model type's decoder layers that its configuration does not state."""


def layer_geometry(config: Config, what: str) -> Geometry:
    """Sizes and switches of a layer of the model type in `config`.

    Raises UserError for a type whose layers are not known: norms and gates of another kind have the same
    shapes.
    """
    kind = config.need("model_type", str)
    if kind not in LAYERS:
        raise config.refuse(
            what, f"layers of model type {kind!r} are not implemented (known: {', '.join(sorted(LAYERS))})"
        )
    switches: dict[str, Any] = dict(LAYERS[kind])
    switches["qk_norm"] = config.get("use_qk_norm", bool, switches["qk_norm"])
    return fields.geometry(config, **switches)


def layer_type(geometry: Geometry) -> str:
    """The model type whose layers have these switches, as `layer_geometry` reads it back."""
    if geometry.output_gate:
        return "qwen3_5_text"
    if geometry.qk_norm:
        return "qwen3"
    return "qwen2" if geometry.attention_bias and not geometry.output_bias else "llama"


_CANNOT_RUN = {
    ".kv_a_proj_with_mqa.": "its attention is multi-head latent attention (MLA), which is not implemented",
    ".experts.": "its MLP is a mixture of experts (MoE), which is not implemented",
    ".mlp.gate.": "its MLP is a mixture of experts (MoE), which is not implemented",
}
"""Parts of keys of MTP layers that the engine does not have, with the reason for the refusal."""


def inside_target(
    config: Config,
    shapes: Shapes,
    layout: str,
    keys: MtpKeys,
    *,
    modules: str,
    others: tuple[str, ...],
    embedding_first: bool = True,
) -> Plan:
    """The plan of an MTP module among its target's tensors, whose keys begin with `others`.

    `modules` is the key under which the configuration counts them; one module is one draft. Raises UserError
    for layers that cannot be run, and for several modules.
    """
    what = f"MTP in {layout} layout"
    inside = [key for key in shapes if key.startswith(keys.layer)]
    for part, reason in _CANNOT_RUN.items():
        if any(part in key for key in inside):
            raise config.refuse(what, reason)
    count = config.get(modules, int, 1)
    if count != 1:
        raise config.refuse(what, f"it has {count} modules, and only one is implemented")
    spec = mtp_spec(config, layout, layer_geometry(config, what), 1, embedding_first)
    ignored = dict.fromkeys(others, "the target")
    return Plan(spec, mtp(spec, keys), ignored)


def mtp_spec(config: Config, layout: str, geometry: Geometry, k: int, embedding_first: bool = True) -> Spec:
    """The conventions of an MTP module beside a target with this configuration.

    The first feature is the target's state after its final norm, the next ones are the module's own after
    its own: what engines feed Qwen's and MiMo's modules, and what the better of the reports on DeepSeek's and
    GLM's found. `mtp.build` can choose otherwise.
    """
    vocab_size = config.count("vocab_size")
    return Spec(
        method="mtp",
        layout=layout,
        taps=(FINAL_NORM,),
        k=k,
        geometry=geometry,
        rope=fields.rope(config),
        layers=1,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        num_target_layers=config.maybe("num_hidden_layers", int),
        serial=Serial(recycle_normed=True, embedding_first=embedding_first),
    )


def never_alone(layout: str) -> UserError:
    """The error for exporting an MTP module in a layout whose files are the target's."""
    return UserError(
        f"{layout} layout keeps the MTP module among its target's tensors and has no file of its own;"
        " export to speculators"
    )
