"""What the drafters with their own weights are built from: norms, rotary angles, attention, decoder layers.

Eager PyTorch on one sequence: states are [n, H], heads [n, heads, head_dim], there is no batch axis. A cache
is a `KVCache` allocated once: a layer writes its keys and values at the positions it is given, and whoever
owns the cache decides which of them to keep by setting its length, so cutting back costs nothing. A position
is a number, or lies on the device (`Places`), as it must in a CUDA graph.

Parameters arrive as a mapping of names to tensors, named as in transformers' Llama-style modules below the
layer (`self_attn.q_proj.weight`); `part(tensors, "layers.0.")` gives a layer's share.
"""

from __future__ import annotations

from draftboard.measure.cache import KVCache
from draftboard_drafters._layers.attention import Attention, Geometry, Place, Places, Rows, Sight, index_of
from draftboard_drafters._layers.decoder import DecoderLayer, SwiGLU
from draftboard_drafters._layers.parameters import Parameters, joined, part
from draftboard_drafters._layers.rms_norm import RMSNorm
from draftboard_drafters._layers.rotary import Angles, Rope, Rotary, rotate
from draftboard_drafters._layers.vocabulary import Vocabulary, blank_numbers, numbers_for

__all__ = [
    "Angles",
    "Attention",
    "DecoderLayer",
    "Geometry",
    "KVCache",
    "Parameters",
    "Place",
    "Places",
    "RMSNorm",
    "Rope",
    "Rotary",
    "Rows",
    "Sight",
    "SwiGLU",
    "Vocabulary",
    "blank_numbers",
    "index_of",
    "joined",
    "numbers_for",
    "part",
    "rotate",
]
