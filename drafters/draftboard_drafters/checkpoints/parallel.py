"""The tensors of a block drafter: DFlash's stack and DSpark's two heads on it."""

from __future__ import annotations

from draftboard_drafters.checkpoints import expected
from draftboard_drafters.checkpoints.record import Expected, Parallel, Spec


def tensors(spec: Spec, *, embedding: str | None, head: str | None) -> tuple[Expected, ...]:
    """All tensors of a block drafter; `embedding` and `head` say where those come from when absent."""
    hidden, parallel = spec.geometry.hidden_size, spec.parallel
    assert parallel is not None
    stack = [
        Expected("fc.weight", (hidden, len(spec.taps) * hidden), "fuses the taps into the context"),
        Expected("hidden_norm.weight", (hidden,), "norm of the context"),
        Expected("norm.weight", (hidden,), "norm before the head"),
        expected.embedding(spec.vocab_size, hidden, embedding),
        expected.head(spec.draft_vocab_size, hidden, head),
        *expected.vocabulary_map(spec.draft_vocab_size, spec.vocab_size),
    ]
    for layer in range(spec.layers):
        stack += expected.decoder_layer(f"layers.{layer}.", spec.geometry)
    return (*stack, *_markov(spec, parallel), *_confidence(spec, parallel))


def _markov(spec: Spec, parallel: Parallel) -> list[Expected]:
    if parallel.markov is None:
        return []
    rank, hidden = parallel.markov_rank, spec.geometry.hidden_size
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "markov_w1.weight": ((spec.vocab_size, rank), "embedding of the previous token"),
        "markov_w2.weight": ((spec.draft_vocab_size, rank), "bias of the logits"),
    }
    if parallel.markov == "gated":
        shapes["gate_proj.weight"] = ((rank, hidden + rank), "gate of the previous token")
        shapes["gate_proj.bias"] = ((rank,), "bias of the gate")
    if parallel.markov == "rnn":
        shapes["joint_proj.weight"] = ((3 * rank, 2 * rank + hidden), "gate, candidate and output")
        shapes["joint_proj.bias"] = ((3 * rank,), "bias of gate, candidate and output")
    return [Expected(f"markov_head.{name}", *rest) for name, rest in shapes.items()]


def _confidence(spec: Spec, parallel: Parallel) -> list[Expected]:
    if parallel.confidence is None:
        return []
    width = spec.geometry.hidden_size
    width += 0 if parallel.confidence == "hidden" else parallel.markov_rank
    return [
        Expected("confidence_head.proj.weight", (1, width), "confidence"),
        Expected("confidence_head.proj.bias", (1,), "bias of the confidence"),
    ]
