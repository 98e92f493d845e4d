"""DFlash and DSpark as vLLM's speculators library writes them (github.com/vllm-project/speculators).

Told by `speculators_model_type` `dflash` or `dspark`; the layers' sizes are nested in
`transformer_layer_config`. Tap ids count block inputs, as ours do. `sample_from_anchor` says whether the
anchor's slot predicts. The vocabulary may be reduced, with `d2t` and a head of its own; the embedding, and
the head of a full vocabulary, are the target's and were stored by some versions only. Sliding layers see the
`sliding_window` positions before the anchor, and are causal within the block unless
`sliding_window_non_causal`.
"""

from __future__ import annotations

from typing import Any

from draftboard_drafters._layers import Sight
from draftboard_drafters.checkpoints import fields, parallel
from draftboard_drafters.checkpoints.config import Config
from draftboard_drafters.checkpoints.markov import markov_fields, markov_switches
from draftboard_drafters.checkpoints.record import TARGETS, Parallel, Plan, Shapes, Spec

NAME = "speculators"
METHODS = ("dflash", "dspark")


def recognise(config: Config, shapes: Shapes) -> Plan | None:
    """A plan for a speculators DFlash or DSpark."""
    kind = config.get("speculators_model_type", str, "")
    if kind not in METHODS:
        return None
    _refuse_relatives(config, kind)
    stack = config.section("transformer_layer_config")
    layers = stack.count("num_hidden_layers")
    anchor_predicts = config.get("sample_from_anchor", bool, kind == "dspark")
    block = Parallel(
        block_size=config.count("block_size", least=1 if anchor_predicts else 2),
        mask_id=config.count("mask_token_id", least=0),
        anchor_predicts=anchor_predicts,
        sights=_sights(config, stack, layers),
        **(markov_switches(config) if kind == "dspark" else {}),
    )
    vocab_size = stack.count("vocab_size")
    spec = Spec(
        method="dflash" if block.markov is None else "dspark",
        layout=NAME,
        taps=config.ids("aux_hidden_state_layer_ids", least=0),
        k=block.drafts,
        geometry=fields.geometry(stack, qk_norm=True),
        rope=fields.rope(stack),
        layers=layers,
        vocab_size=vocab_size,
        draft_vocab_size=config.count("draft_vocab_size"),
        verifier=_verifier(config),
        parallel=block,
        warnings=_warnings(config, block),
    )
    head = TARGETS if spec.draft_vocab_size == spec.vocab_size else None
    return Plan(spec, parallel.tensors(spec, embedding=TARGETS, head=head))


def _refuse_relatives(config: Config, kind: str) -> None:
    projector = config.get("projector_type", str, "dflash")
    if projector != "dflash":
        raise config.refuse(f"DFlash with a {projector} projector", "the projector is not implemented")
    if config.get("shift_label", bool, False) and "sample_from_anchor" not in config:
        raise config.refuse(kind, "shift_label moves its labels, and it does not say sample_from_anchor")


def _sights(config: Config, stack: Config, layers: int) -> tuple[Sight, ...]:
    causal = not config.get("sliding_window_non_causal", bool, False)
    return tuple(
        Sight(causal=causal, window=fields.window(stack), from_first_row=True)
        if kind == fields.SLIDING
        else Sight()
        for kind in fields.layer_types(stack, layers)
    )


def _verifier(config: Config) -> str | None:
    return config.section("speculators_config").section("verifier").maybe("name_or_path", str)


def _warnings(config: Config, block: Parallel) -> tuple[str, ...]:
    stated = config.section("speculators_config").first("proposal_methods").maybe("speculative_tokens", int)
    if stated in (None, block.drafts):
        return ()
    return (f"speculators_config asks for {stated} tokens a round, the block drafts {block.drafts}",)


def config_of(spec: Spec, dtype: str) -> dict[str, Any]:
    """config.json of a DFlash or DSpark in this layout."""
    block = spec.parallel
    assert block is not None
    slides = [sight for sight in block.sights if sight.window is not None]
    types = tuple(fields.FULL if sight.window is None else fields.SLIDING for sight in block.sights)
    stack = fields.model_fields(spec, dtype, types, slides[0].window if slides else None)
    kind = "DFlash" if spec.method == "dflash" else "DSpark"
    proposal = {"proposal_type": "greedy", "speculative_tokens": spec.k}
    return {
        "architectures": [f"{kind}DraftModel"],
        "aux_hidden_state_layer_ids": list(spec.taps),
        "block_size": block.block_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "dtype": dtype,
        "mask_token_id": block.mask_id,
        "sample_from_anchor": block.anchor_predicts,
        "sliding_window_non_causal": bool(slides) and not slides[0].causal,
        "speculators_config": {
            "algorithm": spec.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"architectures": [], "name_or_path": spec.verifier},
        },
        "speculators_model_type": spec.method,
        "tie_word_embeddings": False,
        "transformer_layer_config": {**stack, "rope_parameters": dict(spec.rope.parameters)},
        **(markov_fields(block) if spec.method == "dspark" else {}),
    }
