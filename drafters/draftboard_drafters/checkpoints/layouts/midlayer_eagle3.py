"""EAGLE-3 as its authors and SpecForge publish it (github.com/SafeAILab/EAGLE,
github.com/sgl-project/SpecForge).

Told by keys that begin with `midlayer.` or by `architectures: ["LlamaForCausalLMEagle3"]`, without
`speculators_model_type`. The head is the drafter's own, over a reduced vocabulary; the embedding is the
target's where it is not stored. Tap ids in `eagle_config` count block outputs. The authors' files name none:
their code always takes the reference taps (`Spec.taps_of`), and SpecForge's does where it has no ids. The raw
state is recycled, whatever the switches; `norm_output` false leaves out the norm before the head.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters.checkpoints import fields, serial
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.record import TARGETS, Checkpoint, Plan, Serial, Shapes, Spec

NAME = "SpecForge"
METHODS = ("eagle3",)

_ARCHITECTURE = "LlamaForCausalLMEagle3"
_FIRST = "midlayer."
_TAPS = "eagle_aux_hidden_state_layer_ids"
_TRAINED_STEPS = 7
"""Drafts unrolled in training by both code bases, unless `ttt_length` says otherwise."""
_WHAT = "EAGLE-3 in SafeAILab or SpecForge layout"


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for an EAGLE-3 with a `midlayer`; UserError for its relatives."""
    named = _ARCHITECTURE in config.words("architectures")
    if "speculators_model_type" in config or not (named or any(key.startswith(_FIRST) for key in shapes)):
        return None
    config = config.merged("eagle_config")
    _refuse_relatives(config)
    geometry = fields.geometry(config, qk_norm=False)
    taps = fields.output_taps(config, _TAPS, None) if _TAPS in config else ()
    vocab_size = config.count("vocab_size")
    spec = Spec(
        method="eagle3",
        layout=NAME if taps else "SafeAILab",
        taps=taps,
        k=config.count("ttt_length", _TRAINED_STEPS),
        geometry=geometry,
        rope=fields.rope(config),
        layers=1,
        vocab_size=vocab_size,
        draft_vocab_size=config.count("draft_vocab_size"),
        serial=_switches(config),
        warnings=_warnings(config),
    )
    width = config.count("target_hidden_size", geometry.hidden_size)
    full = spec.draft_vocab_size == vocab_size
    ignored = dict.fromkeys(("d2t", "t2d"), "a map that a full vocabulary does not need") if full else {}
    return Plan(spec, serial.eagle3(spec, width, embedding=TARGETS, first=_FIRST), ignored)


def _refuse_relatives(config: Config) -> None:
    if not config.get("use_aux_hidden_state", bool, True):
        raise config.refuse(_WHAT, "use_aux_hidden_state is false: it reads the last state, not taps")
    if (layers := config.get("num_hidden_layers", int, 1)) != 1:
        raise config.refuse(_WHAT, f"it has {layers} layers, and the layout defines one")


def _switches(config: Config) -> Serial:
    return Serial(
        tap_norms=config.get("fc_norm", bool, False),
        norm_before_fuse=config.get("norm_before_fc", bool, False),
        norm_before_head=config.get("norm_output", bool, True),
    )


def _warnings(config: Config) -> tuple[str, ...]:
    if not config.get("norm_output", bool, False):
        return ()
    return (
        "norm_output is true, read as SpecForge reads it: normed before the head, the raw state is recycled;"
        " other trainers mean that the normed state is",
    )


def config_of(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """config.json of an EAGLE-3 in this layout."""
    switches, parameters = checkpoint.serial, checkpoint.rope.parameters
    assert switches is not None
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    width = checkpoint.tensors["fc.weight"].shape[1] // (len(checkpoint.taps) or serial.REFERENCE_TAPS)
    model = fields.model_fields(checkpoint, dtype, (fields.FULL,), None)
    return {
        **model,
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": width,
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "rope_theta": parameters["rope_theta"],
        "ttt_length": checkpoint.k,
        "fc_norm": switches.tap_norms,
        "norm_before_fc": switches.norm_before_fuse,
        **({} if switches.norm_before_head else {"norm_output": False}),
        **({"eagle_config": _eagle_config(checkpoint)} if checkpoint.taps else {}),
    }


def _eagle_config(checkpoint: Checkpoint) -> dict[str, Any]:
    return {_TAPS: [tap - 1 for tap in checkpoint.taps], "use_aux_hidden_state": True}
