"""The forward of any other causal LM: its own module over our cache, block outputs caught by hooks."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from draftboard.drafter import FINAL_NORM
from draftboard.errors import UserError
from draftboard.measure.module_cache import ModuleCache
from draftboard.measure.readout import AFTER, Readout

_ROWS, _TOLERANCE = 4, 1e-2
"""Embeddings that are tried, and an error relative to the largest number that is rounding."""


class ModuleForward:
    """A transformers causal LM run as it is. Hooks exist only for the taps that are asked for."""

    name = "module"

    def __init__(self, model: Any, capacity: int) -> None:
        self.model = model
        self.blocks = _blocks(model)
        self.norm = _final_norm(model)
        self.readout = Readout(model)
        self.readable = self.readout.is_the_models(model, self.norm)
        self.cache = ModuleCache(len(self.blocks), capacity)
        parameters = inspect.signature(model.forward).parameters
        self.scale = self._scale()
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [n, H] of ids [n]. Raises UserError where the model scales them afterwards."""
        if self.scale != 1.0:
            raise UserError(
                f"{type(self.model).__name__} multiplies its embeddings by {self.scale:.4g} on their way to"
                " its first block; drafters that share them may not expect that and cannot be run:"
                " choose one with embeddings of its own"
            )
        embedded: Tensor = self.model.get_input_embeddings()(ids)
        return embedded

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The last norm of raw states [n, H]."""
        normed: Tensor = self.norm(hidden)
        return normed

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of normed states [n, H]. Raises UserError where they would not be the model's."""
        if not self.readable:
            raise UserError(
                f"{type(self.model).__name__} turns its last state into logits by more than its head and"
                f" {', '.join(AFTER)}; drafters that read through this target's head cannot be run"
            )
        return self.readout(hidden)

    def run(self, ids: Tensor, taps: tuple[int, ...], last_only: bool) -> tuple[Tensor, Tensor]:
        """Appends ids [m] to the cache. Returns logits [m or 1, V] and features [m, L, H]."""
        caught: dict[int, Tensor] = {}
        handles = [self._hook(tap, caught) for tap in taps]
        options = {self._cache_name: self.cache, "logits_to_keep": int(last_only)}
        try:
            output = self.model(input_ids=ids[None], use_cache=True, **options)
        finally:
            for handle in handles:
                handle.remove()
        logits = output.logits[0]
        width = self.model.config.get_text_config().hidden_size
        features = (
            torch.stack([caught[tap] for tap in taps], dim=1)
            if taps
            else logits.new_empty(len(ids), 0, width)
        )
        return logits, features

    @torch.inference_mode()
    def _scale(self) -> float:
        """What the model multiplies its embeddings by before the first block; 1 too where it does something
        else to them, such as adding positions."""
        vocabulary = self.model.get_input_embeddings()
        ids = torch.arange(_ROWS, device=self.model.device) % self.model.config.get_text_config().vocab_size
        caught: dict[int, Tensor] = {}
        handle = self._hook(0, caught)
        try:
            self.model(input_ids=ids[None], use_cache=False)
        finally:
            handle.remove()
        own, entering = vocabulary(ids).float(), caught[0].float()
        if own.shape != entering.shape:
            return 1.0
        factor = float((entering * own).sum() / own.square().sum())
        scaled = (entering - factor * own).abs().max() <= _TOLERANCE * entering.abs().max()
        return factor if scaled and abs(factor - 1) > _TOLERANCE else 1.0

    def _hook(self, tap: int, caught: dict[int, Tensor]) -> Any:
        def keep(value: Any) -> None:
            caught[tap] = (value[0] if isinstance(value, tuple) else value)[0]

        if tap == 0:
            return self.blocks[0].register_forward_pre_hook(
                lambda module, args, kwargs: keep(args[0] if args else kwargs["hidden_states"]),
                with_kwargs=True,
            )
        module = self.norm if tap == FINAL_NORM else self.blocks[tap - 1]
        return module.register_forward_hook(lambda module, args, output: keep(output))


def _blocks(model: Any) -> nn.ModuleList:
    """The list of decoder layers: the one module list as long as the configuration says."""
    layers = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return module
    raise UserError(
        f"{type(model).__name__} has no list of {layers} decoder layers; such a target cannot be tapped"
    )


def _final_norm(model: Any) -> nn.Module:
    """The norm after the last block: a direct child of the decoder, named as transformers names it."""
    decoder = model.get_decoder()
    for name in ("norm", "final_layernorm", "final_layer_norm", "ln_f"):
        if isinstance(getattr(decoder, name, None), nn.Module):
            module: nn.Module = getattr(decoder, name)
            return module
    raise UserError(
        f"{type(model).__name__} has no final norm under a known name; such a target cannot be tapped"
    )
