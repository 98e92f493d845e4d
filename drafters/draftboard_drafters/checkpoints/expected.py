"""Lists of the tensors that belong to a drafter, for layouts to put together."""

from __future__ import annotations

from draftboard_drafters._layers import Geometry
from draftboard_drafters.checkpoints.record import Expected


def decoder_layer(prefix: str, geometry: Geometry, *, at: str = "", width: int = 0) -> list[Expected]:
    """A decoder layer's tensors: named `prefix` in the record, `at` in the file where that differs.

    `width` is what the attention reads, where that is not the hidden size.
    """
    hidden, inner = geometry.hidden_size, geometry.intermediate_size
    vectors = {
        "input_layernorm.weight": (hidden, "norm before attention"),
        "post_attention_layernorm.weight": (hidden, "norm before the MLP"),
    }
    matrices = {
        **_attention(geometry, width or hidden),
        "mlp.gate_proj.weight": ((inner, hidden), "MLP gate"),
        "mlp.up_proj.weight": ((inner, hidden), "MLP up"),
        "mlp.down_proj.weight": ((hidden, inner), "MLP down"),
    }
    shapes = {name: ((size,), role) for name, (size, role) in vectors.items()} | matrices
    return [
        Expected(prefix + name, shape, role, (at or prefix) + name) for name, (shape, role) in shapes.items()
    ]


def _attention(geometry: Geometry, width: int) -> dict[str, tuple[tuple[int, ...], str]]:
    queries, keys = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    rows = {"q": queries * (2 if geometry.output_gate else 1), "k": keys, "v": keys}
    words = {"q": "queries", "k": "keys", "v": "values"}
    tensors: dict[str, tuple[tuple[int, ...], str]] = {
        f"self_attn.{name}_proj.weight": ((size, width), f"attention {words[name]}")
        for name, size in rows.items()
    }
    tensors["self_attn.o_proj.weight"] = ((geometry.hidden_size, queries), "attention output")
    if geometry.attention_bias:
        for name, size in rows.items():
            tensors[f"self_attn.{name}_proj.bias"] = ((size,), f"bias of the {words[name]}")
    if geometry.output_bias:
        tensors["self_attn.o_proj.bias"] = ((geometry.hidden_size,), "bias of the attention output")
    if geometry.qk_norm:
        for name in ("q", "k"):
            tensors[f"self_attn.{name}_norm.weight"] = ((geometry.head_dim,), f"norm of the {words[name]}")
    return tensors


def embedding(vocab_size: int, hidden_size: int, absent: str | None) -> Expected:
    """The drafter's own token embedding; `absent` says where it comes from when the file has none."""
    return Expected("embed_tokens.weight", (vocab_size, hidden_size), "token embedding", absent=absent)


def head(rows: int, hidden_size: int, absent: str | None) -> Expected:
    """The drafter's own output head."""
    return Expected("lm_head.weight", (rows, hidden_size), "output head", absent=absent)


def vocabulary_map(draft_vocab_size: int, vocab_size: int) -> list[Expected]:
    """The map of a reduced vocabulary; nothing where the vocabulary is the target's."""
    if draft_vocab_size == vocab_size:
        return []
    return [
        Expected("d2t", (draft_vocab_size,), "target id minus draft id"),
        Expected("t2d", (vocab_size,), "target ids that the drafter knows", absent="derived from d2t"),
    ]
