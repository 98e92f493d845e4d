"""The target model: prefill, extend, truncate, and the states that drafters tap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from draftboard.measure.fused import FusedForward, fits
from draftboard.measure.graphs import LEAST_WIDTH, CudaRecorder, Graphs, Recorder
from draftboard.measure.source_model import ReadOnce
from draftboard.record.records import TargetRef


class Forward(Protocol):
    """One way to compute the target over a cache that can be cut back."""

    cache: Any

    @property
    def name(self) -> str: ...

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]: ...
    def embed(self, ids: Tensor) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...
    def final_norm(self, hidden: Tensor) -> Tensor: ...


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configurations call the number of experts in a layer."""


class TargetModel:
    """A causal LM with one sequence in its cache. Implements `draftboard.drafter.Target`.

    Shapes: m tokens, V rows of logits, L taps, H hidden size. There is no batch axis.
    """

    def __init__(
        self,
        model: Any,
        *,
        id: str,
        max_context: int,
        tokenizer: Any = None,
        revision: str | None = None,
        stop_ids: frozenset[int] | None = None,
        fused: bool = True,
        spend: bool = False,
    ) -> None:
        """Takes a transformers causal LM in eval mode, on its device and in its dtype.

        `stop_ids` defaults to the model's own. `fused` False forces the module's own forward. `spend` lets
        the fused forward use the model up, so that its weights are never in memory twice.
        """
        self.id, self.revision, self.tokenizer = id, revision, tokenizer
        self.config = model.config.get_text_config()
        self.dtype, self.device = model.dtype, model.device
        self.max_context = max_context
        self.stop_ids = model_stop_ids(model) if stop_ids is None else stop_ids
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.token_bytes = _token_bytes(model, self.weight_bytes)
        with torch.inference_mode():
            self.forward = _forward_of(model, max_context, fused and fits(model.config), spend)
        self._taps: tuple[int, ...] = ()
        self.graphs: Graphs | None = None
        self._run: Callable[..., tuple[Tensor, Tensor]] = self.forward.run
        if self.device.type == "cuda":
            self.use_graphs(CudaRecorder(self.device))

    @property
    def vocab_size(self) -> int:
        """V: rows of the logits, padding included."""
        return int(self.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks; as a tap it is the last block's raw output."""
        return int(self.config.num_hidden_layers)

    def use_graphs(self, recorder: Recorder, least_width: int = LEAST_WIDTH) -> None:
        """Replays from now on what `recorder` captures of the fused forward; see `Graphs`. A target on a GPU
        begins with CUDA graphs. The module's own forward is left as it is."""
        if isinstance(self.forward, FusedForward):
            self.graphs = Graphs(self.forward, recorder, least_width)
            self._run = self.graphs.run

    def begin(self, taps: tuple[int, ...]) -> None:
        """Empties the cache and sets the taps of the sequence to come."""
        wrong = [tap for tap in taps if not -1 <= tap <= self.num_layers]
        if wrong:
            raise ValueError(f"tap {wrong[0]} does not exist; the target has taps -1 to {self.num_layers}")
        self.forward.cache.truncate(0)
        self._taps = taps

    @torch.inference_mode()
    def prepare(self, rows: Iterable[int]) -> None:
        """Captures what the sequence to come needs; `rows` are the numbers of rows of its forwards. To be
        called after `begin` and before the clock starts. Without a GPU there is nothing to do."""
        if self.graphs is not None:
            self.graphs.prepare(rows, self._taps)

    def prefill(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the prompt, ids int64 [n]. Returns the last logits [1, V] and features [n, L, H]."""
        return self._run(ids, self._taps, last_only=True)

    def extend(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Appends ids int64 [m]. Returns logits [m, V], in float32 or the target's dtype, and features
        [m, L, H]."""
        return self._run(ids, self._taps, last_only=False)

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on, in O(1)."""
        self.forward.cache.truncate(length)

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return int(self.forward.cache.length)

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [n, H] of ids int64 [n]."""
        return self.forward.embed(ids)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of states [n, H] past the final norm."""
        return self.forward.head(hidden)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The last norm, applied to raw states [n, H]."""
        return self.forward.final_norm(hidden)

    def reference(self) -> TargetRef:
        """What a record says of this target."""
        config = self.config
        heads = int(config.num_attention_heads)
        return TargetRef(
            id=self.id,
            revision=self.revision,
            architecture=(config.architectures or [config.model_type])[0],
            layers=self.num_layers,
            hidden_size=self.hidden_size,
            query_heads=heads,
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or self.hidden_size // heads),
            vocab_size=self.vocab_size,
            weight_bytes=self.weight_bytes,
            max_context=self.max_context,
            forward=self.forward.name,
            graphs=None if self.graphs is None else self.graphs.count,
            graphs_missing=self._graphs_missing(),
        )

    def _graphs_missing(self) -> str | None:
        """Why no forward is replayed from a CUDA graph; None where some are."""
        if self.graphs is not None:
            return self.graphs.missing
        return "not on a GPU" if self.device.type != "cuda" else "only the fused forward is captured"


def model_stop_ids(model: Any) -> frozenset[int]:
    """The ids that end this model's replies, by its generation settings, else by its configuration."""
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    ids = model.config.get_text_config().eos_token_id if ids is None else ids
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)


def _token_bytes(model: Any, weight_bytes: int) -> int | None:
    """Bytes of weights that one token reads: all of them but an input embedding that is not the head as well,
    of which it reads a row; None for a mixture of experts, which reads those that it is sent to."""
    facts = model.config.get_text_config()
    if any((getattr(facts, name, None) or 1) > 1 for name in _EXPERTS):
        return None
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight.data_ptr() == table.weight.data_ptr():
        return weight_bytes
    return int(weight_bytes - table.weight.numel() * table.weight.element_size())


def _forward_of(model: Any, capacity: int, fused: bool, spend: bool) -> Forward:
    if fused:
        if spend:
            model.model.layers = ReadOnce(model.model.layers)
        return FusedForward(model, capacity)
    # Imported here: transformers' cache takes seconds to import, and a run's parent process needs none.
    from draftboard.measure.module_forward import ModuleForward

    return ModuleForward(model, capacity)
