"""A model out of its files, and its weights given up as fast as they are read: neither is in memory twice.

Loaded as usual, the pages of a mapped weight file stay resident beside the tensors made from them, and a
model stays whole beside the joined copies of its weights.

transformers is imported where a model is made: that takes seconds, and a run's parent process makes none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import safetensors
import torch
from torch import nn


def read_model(source: str, revision: str | None, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """The causal LM in a folder or behind a hub id, on the CPU in eval mode, and the names of the tensors
    that its files lack. Raises whatever the libraries say of the files."""
    from transformers import AutoModelForCausalLM

    with _files_read_not_mapped():
        model, found = AutoModelForCausalLM.from_pretrained(
            source, revision=revision, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    return model.eval(), sorted(found["missing_keys"])


def import_code(source: str, revision: str | None) -> None:
    """Imports what a model is computed with, by making it without memory: tens of MB that are not its own.
    A model that cannot be made is for `read_model` to refuse."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with suppress(Exception), torch.device("meta"):
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        AutoModelForCausalLM.from_config(config)


@contextmanager
def _files_read_not_mapped() -> Iterator[None]:
    """transformers maps safetensors files and has a setting only for reading each of them whole; the
    library itself can read tensor by tensor. One thread reads: what several allocate, a C library keeps apart
    and cannot use again for the joined weights."""
    from transformers import modeling_utils

    def read(filename: str, framework: str, device: str = "cpu", backend: str = "") -> Any:
        return safetensors.safe_open(filename, framework, device, backend="pread")

    with (
        mock.patch.object(modeling_utils, "safe_open", read),
        mock.patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"),
    ):
        yield


class ReadOnce(nn.ModuleList):
    """A model's layers, to be read in order and once: each gives its parameters up when the next is asked
    for. What the reader has kept of them (detached tensors) stays whole."""

    def __iter__(self) -> Iterator[nn.Module]:
        for index in range(len(self)):
            layer = self[index]
            yield layer
            for parameter in layer.parameters():
                parameter.data = parameter.new_empty(0)
