"""Grouped-query attention over a cache written in place, and what a row of it may see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from draftboard.measure.attention import attend
from draftboard.measure.block_parts import Heads, attention_call, few
from draftboard.measure.cache import KVCache
from draftboard_drafters._layers.parameters import Parameters, joined
from draftboard_drafters._layers.rms_norm import RMSNorm
from draftboard_drafters._layers.rotary import Angles, Rotary, rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes and switches shared by all layers of a drafter. `eps` is that of its norms."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qk_norm: bool
    """Queries and keys are normed per head before they are turned."""
    attention_bias: bool = False
    """The query, key and value products have a bias."""
    output_bias: bool = False
    """The attention's output product has a bias."""
    zero_centred_norms: bool = False
    """Norms multiply by 1 + w."""
    output_gate: bool = False
    """q_proj yields, per head, a query and a gate: the heads' outputs are multiplied by sigmoid(gate)."""

    def norm(self, weight: Tensor) -> RMSNorm:
        """A norm of this drafter's kind."""
        return RMSNorm(weight, self.eps, zero_centred=self.zero_centred_norms)


@dataclass(frozen=True, slots=True)
class Places:
    """Positions that only the device knows, so that one CUDA graph serves them all."""

    at: Tensor
    """int64 [n], ascending."""
    stop: int
    """Cached positions that are read, whatever `at` says; those behind a row are hidden by a mask."""

    @classmethod
    def after(cls, start: Tensor, rows: int, width: int) -> Places:
        """`rows` positions from `start`, int64 [], on, among the first `width` of the cache."""
        return cls(start + torch.arange(rows, device=start.device), width)


Place = slice | Places
"""Where the rows of a forward stand in the cache."""


def index_of(place: Place) -> slice | Tensor:
    """The positions themselves, to index a table with."""
    return place if isinstance(place, slice) else place.at


@dataclass(frozen=True, slots=True)
class Sight:
    """What the rows of one forward see of the positions before them and of each other."""

    causal: bool = False
    """A row sees no later row."""
    window: int | None = None
    """A row sees the `window` nearest positions, itself included; None sees all."""
    from_first_row: bool = False
    """The window is measured once: every row sees the `window` positions before the first row."""

    def mask(self, place: Place, device: torch.device) -> Tensor | None:
        """bool [n, place.stop] for rows at the positions in `place`; None where every row sees everything."""
        ordered = self.causal and not (isinstance(place, slice) and place.stop - place.start == 1)
        if isinstance(place, slice) and self.window is None and not ordered:
            return None
        columns = torch.arange(place.stop, device=device)
        at = columns[index_of(place)].unsqueeze(1)
        mask = columns <= (at if self.causal else at[-1:].expand_as(at))
        if self.window is not None:
            first = columns >= at[:1] - self.window
            mask = mask & (first if self.from_first_row else (at - columns).abs() < self.window)
        return mask


class Rows:
    """The rows of one forward: where they stand, how they are turned, what they see. Made once a forward."""

    def __init__(self, place: Place, sight: Sight, rotary: Rotary) -> None:
        self.place, self.sight, self.rotary = place, sight, rotary

    @cached_property
    def angles(self) -> Angles:
        """Of the rows' positions."""
        return self.rotary.at(index_of(self.place))

    @cached_property
    def mask(self) -> Tensor | None:
        """See `Sight.mask`."""
        return self.sight.mask(self.place, self.rotary.cos.device)

    @property
    def start(self) -> int | None:
        """The first row's position, where the host knows it, no window hides anything, and heads turn whole;
        else None."""
        window, place = self.sight.window, self.place
        if isinstance(place, Places) or self.rotary.table is None:
            return None
        return place.start if window is None or place.stop <= window else None


class Attention:
    """q_proj, k_proj, v_proj as one product, attention over the cache, o_proj.

    The input may be wider than the hidden size: the products take what their weights say.
    """

    def __init__(self, parameters: Parameters, geometry: Geometry) -> None:
        """Parameters `q_proj.weight` and so on, biases where they are, `q_norm.weight` with `qk_norm`."""
        self.geometry = geometry
        self.qkv = joined(parameters, "q_proj", "k_proj", "v_proj")
        self.out = joined(parameters, "o_proj")
        norms: list[RMSNorm] = []
        if geometry.qk_norm:
            self.q_norm = geometry.norm(parameters["q_norm.weight"])
            self.k_norm = geometry.norm(parameters["k_norm.weight"])
            norms = [self.q_norm, self.k_norm]
        heads = Heads(
            geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.eps, *(n.weight for n in norms)
        )
        self.call = None if geometry.output_gate else attention_call(self.qkv, self.out, heads)

    def __call__(self, x: Tensor, rows: Rows, cache: KVCache, layer: int) -> Tensor:
        """x [n, in] at the rows' positions, which it fills in the cache's layer. Returns [n, H]."""
        start, table = rows.start, rows.rotary.table
        if self.call is not None and start is not None and table is not None and few(x):
            return self.call(x, cache, layer, start, table, causal=rows.sight.causal)
        queries, gate, keys, values = self._project(x)
        place, store, heads = rows.place, cache.layers[layer], self.geometry.heads
        turned = rotate(torch.cat([queries, keys], dim=1), rows.angles)
        queries, keys = turned[:, :heads], turned[:, heads:]
        fresh = torch.cat([keys, values], dim=1).transpose(0, 1)
        if isinstance(place, slice):
            store.narrow(1, place.start, len(x)).copy_(fresh)
        else:
            store.index_copy_(1, place.at, fresh)
        mask = rows.mask
        wide = None if mask is None else mask.repeat(heads // self.geometry.kv_heads, 1)
        seen_keys, seen_values = store.narrow(1, 0, place.stop).chunk(2)
        seen = attend(queries, seen_keys, seen_values, wide)
        return self.out(seen if gate is None else seen * torch.sigmoid(gate))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Queries [n, heads, hd], gate [n, heads * hd] or None, keys and values [n, kv_heads, hd]."""
        geometry, rows = self.geometry, len(x)
        wide = geometry.heads * (2 if geometry.output_gate else 1)
        heads = self.qkv(x).view(rows, wide + 2 * geometry.kv_heads, geometry.head_dim)
        queries, keys, values = torch.split(heads, [wide, geometry.kv_heads, geometry.kv_heads], dim=1)
        gate = None
        if geometry.output_gate:
            queries, gates = queries.reshape(rows, geometry.heads, -1).chunk(2, dim=-1)
            gate = gates.reshape(rows, -1)
        if geometry.qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return queries, gate, keys, values
