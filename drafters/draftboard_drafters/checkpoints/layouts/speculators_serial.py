"""EAGLE-3 and MTP as vLLM's speculators library writes them (github.com/vllm-project/speculators).

Told by `speculators_model_type` `eagle3` or `mtp`; the layers' sizes are nested in
`transformer_layer_config`, whose `model_type` says of which kind they are.

EAGLE-3: tap ids count block inputs, as ours do; a file without ids means the library's default, the reference
taps (`Spec.taps_of`). Switches that a file leaves out are false, as in the library. `norm_output` true means
that the normed state is recycled. MTP: one module under `mtp_layers.0.`, the embedding stands before the
feature, `num_hidden_layers` is the target's.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import fields, serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import TARGETS, Checkpoint, Plan, Serial, Shapes, Spec

NAME = "speculators"
METHODS = ("eagle3", "mtp")

_TAPS = "eagle_aux_hidden_state_layer_ids"
_LAYER = "mtp_layers.0."
_KEYS = serial.MtpKeys(
    fuse=f"{_LAYER}input_proj.weight",
    embedding_norm=f"{_LAYER}token_layernorm.weight",
    hidden_norm=f"{_LAYER}hidden_layernorm.weight",
    final_norm=f"{_LAYER}final_layernorm.weight",
    embedding="embed_tokens.weight",
    head="lm_head.weight",
    layer=_LAYER,
)


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for a speculators EAGLE-3 or MTP."""
    kind = config.get("speculators_model_type", str, "")
    readers = {"eagle3": _eagle3, "mtp": _mtp}
    return readers[kind](config, config.section("transformer_layer_config")) if kind in readers else None


def _eagle3(config: Config, stack: Config) -> Plan:
    layers, what = stack.count("num_hidden_layers"), "EAGLE-3 in speculators layout"
    if fields.SLIDING in fields.layer_types(stack, layers):
        raise config.refuse(what, "it has sliding layers, which are not implemented for it")
    geometry = serial.layer_geometry(stack, what)
    spec = Spec(
        method="eagle3",
        layout=NAME,
        taps=config.ids(_TAPS, least=0) if _TAPS in config else (),
        k=_proposed(config),
        geometry=geometry,
        rope=fields.rope(stack),
        layers=layers,
        vocab_size=stack.count("vocab_size"),
        draft_vocab_size=config.count("draft_vocab_size"),
        verifier=_verifier(config),
        serial=Serial(
            tap_norms=config.get("fc_norm", bool, False),
            norm_before_fuse=config.get("norm_before_fc", bool, False),
            norm_before_residual=config.get("norm_before_residual", bool, False),
            recycle_normed=config.get("norm_output", bool, False),
        ),
    )
    width = config.count("target_hidden_size", geometry.hidden_size)
    return Plan(spec, serial.eagle3(spec, width, embedding=TARGETS, first="layers.0."))


def _mtp(config: Config, stack: Config) -> Plan:
    what, modules = "MTP in speculators layout", config.get("num_nextn_predict_layers", int, 1)
    if modules != 1:
        raise config.refuse(what, f"it has {modules} modules, and only one is implemented")
    spec = serial.mtp_spec(stack, NAME, serial.layer_geometry(stack, what), _proposed(config))
    return Plan(spec, serial.mtp(spec, _KEYS))


def _proposed(config: Config) -> int:
    """Drafts a round; the library writes the steps it trained with."""
    return config.section("speculators_config").first("proposal_methods").count("speculative_tokens")


def _verifier(config: Config) -> str | None:
    return config.section("speculators_config").section("verifier").maybe("name_or_path", str)


def config_of(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """config.json of an EAGLE-3 or MTP in this layout."""
    stack = fields.model_fields(checkpoint, dtype, (fields.FULL,) * checkpoint.layers, None)
    stack["model_type"] = serial.layer_type(checkpoint.geometry)
    stack["rope_parameters"] = dict(checkpoint.rope.parameters)
    writers = {"eagle3": _eagle3_fields, "mtp": _mtp_fields}
    return {
        "dtype": dtype,
        "speculators_config": {
            "algorithm": checkpoint.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": checkpoint.k}],
            "verifier": {"architectures": [], "name_or_path": checkpoint.verifier},
        },
        "speculators_model_type": checkpoint.method,
        "tie_word_embeddings": False,
        **writers[checkpoint.method](checkpoint, stack),
    }


def _eagle3_fields(checkpoint: Checkpoint, stack: dict[str, Any]) -> dict[str, Any]:
    switches, taps = checkpoint.serial, list(checkpoint.taps)
    assert switches is not None
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": checkpoint.draft_vocab_size,
        _TAPS: taps or None,
        "fc_norm": switches.tap_norms,
        "norm_before_fc": switches.norm_before_fuse,
        "norm_before_residual": switches.norm_before_residual,
        "norm_output": switches.recycle_normed,
        "target_hidden_size": checkpoint.tensors["fc.weight"].shape[1]
        // (len(taps) or serial.REFERENCE_TAPS),
        "transformer_layer_config": stack,
    }


def _mtp_fields(checkpoint: Checkpoint, stack: dict[str, Any]) -> dict[str, Any]:
    of = checkpoint.num_target_layers
    layers = {"num_hidden_layers": of, "layer_types": None if of is None else [fields.FULL] * of}
    return {
        "architectures": ["MTPDraftModel"],
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": {**stack, **layers},
    }
