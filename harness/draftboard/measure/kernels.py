"""A few rows through a Llama-style model in one call: what a round of decoding computes, on a CPU.

Every thread of the team runs `forward` from end to end and takes its share of each step; between steps they
wait for each other. A thread reads its rows of a weight one after the other, which is how memory is fastest.
Sums are taken row by row in a fixed order (see `vectors`), so a row's result does not depend on how many rows
share the call: a verification computes, to the last bit, what plain decoding would have computed.

Numbers between the weights are float32. Weights, keys and values may be bfloat16.

Compiled by numba, once a checkout and again when its sources change: the machine code is kept beside this
file or, where that cannot be written, in the user's cache. Records are laid out here and filled by `steps`
and `block_parts`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit, types
from numba.np.numpy_support import carray

from draftboard.measure.row_math import add, floats, gate, mix, norm, norms, product, softmax, store
from draftboard.measure.vectors import LANES, arrive, pointer, seen

PRODUCT = np.dtype(
    [(name, np.int64) for name in ("weight", "bias", "half", "outputs", "inner", "x", "rows", "out")],
    align=True,
)
"""One product. Addresses, and numbers of outputs, inputs and rows. bias: float32, or 0 for none."""

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias", "post_norm",
            "gate_up", "gate_up_bias", "down", "down_bias", "cache", "tap",
        )
    ],
    align=True,
)  # fmt: skip
"""One decoder block: addresses, 0 for what it lacks. Norms and biases are float32. `tap` takes the block's
output, float32 rows `tap_step` bytes apart."""

MODEL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "half", "hidden", "heads", "kv_heads", "head_dim", "inter", "layers", "blocks", "norm", "head",
            "outputs", "capacity", "angles", "partner", "stride",
            "rows", "start", "last_only", "whole", "inner", "x", "result", "normed", "tap_step",
            "meeting", "shared", "more", "own", "own_step",
        )
    ]
    + [("eps", np.float32), ("scale", np.float32)],
    align=True,
)  # fmt: skip
"""A model or a part of one, and one call: sizes, addresses, and room for what is computed.

`angles`: float32 [capacity, head_dim], the cosines and then the sines of each position. The numbers of a head
that turn together are i * `stride` and i * `stride` + `partner`. `shared` and `more` ([rows, hidden]) are for
all threads, `own` for each, `own_step` bytes apart. `meeting` is an int64, 0 when a call begins.
Where `whole`, rows see each other.
"""

_thread: Any = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads: Any = types.ExternalFunction("omp_get_num_threads", types.int32())
_give_way: Any = types.ExternalFunction("sched_yield", types.int32())

_PATIENCE = 2000
"""Looks at a meeting place before a thread lets others have its processor: about 50 us."""

_part = njit(error_model="numpy")


@_part
def share(count: int, unit: int, me: int, team: int) -> tuple[int, int]:
    """First and last + 1 of the `count` things that are thread `me`'s, in whole units."""
    units = (count + unit - 1) // unit
    return min(count, units * me // team * unit), min(count, units * (me + 1) // team * unit)


@_part
def wait(m: Any, team: int) -> None:
    """Until all threads are here. An OpenMP barrier would spin for milliseconds while the thread that it
    waits for has no processor, and a call has hundreds of them."""
    goal, looks = (arrive(m.meeting) // team + 1) * team, 0
    while seen(m.meeting) < goal:
        looks += 1
        if looks > _PATIENCE:
            _give_way()


@_part
def turn(m: Any, head: int, position: int) -> None:
    """Turns a query or key by its position (Su et al., arXiv 2104.09864)."""
    numbers, pairs = floats(head, m.head_dim), m.head_dim // 2
    angles = floats(m.angles + position * m.head_dim * 4, m.head_dim)
    for i in range(pairs):
        first, second = i * m.stride, i * m.stride + m.partner
        a, b = numbers[first], numbers[second]
        numbers[first] = a * angles[i] - b * angles[pairs + i]
        numbers[second] = b * angles[i] + a * angles[pairs + i]


@_part
def enter(m: Any, layer: Any, row: int, head: int, place: int, spare: int) -> None:
    """One head of one row after the first product: normed, turned, and a key or value put into the cache."""
    keys = m.heads + m.kv_heads
    if head < keys:
        factors = layer.q_norm if head < m.heads else layer.k_norm
        if factors:
            norm(place, factors, m.head_dim, m.eps, spare)
            store(False, spare, m.head_dim, place)
        turn(m, place, m.start + row)
    if head >= m.heads:
        size = m.head_dim * (2 if m.half else 4)
        store(m.half, place, m.head_dim, layer.cache + ((head - m.heads) * m.capacity + m.start + row) * size)


@_part
def attend(m: Any, layer: Any, row: int, head: int, query: int, out: int, scores: int, powers: int) -> None:
    """One query over the keys and values up to its own position or, where `whole`, up to the last row's."""
    count, size = m.start + (m.rows if m.whole else row + 1), m.head_dim * (2 if m.half else 4)
    kv = head // (m.heads // m.kv_heads)
    keys = layer.cache + kv * m.capacity * size
    values = keys + m.kv_heads * m.capacity * size
    product(m.half, keys, 0, 0, count, m.head_dim, query, 1, scores, 0)
    softmax(floats(scores, count), floats(powers, count), m.scale)
    mix(m.half, scores, values, size, count, m.head_dim, out)


@_part
def attention(m: Any, layer: Any, me: int, team: int, x: int, inner: int, own: int, out: int) -> None:
    """From normed states x [rows, inner] to out [rows, hidden], of which each thread has its columns."""
    heads, size, wide = m.heads + 2 * m.kv_heads, m.head_dim * 4, m.shared
    found = wide + m.rows * heads * size
    first, last = share(heads * m.head_dim, LANES, me, team)
    product(m.half, layer.qkv, layer.qkv_bias, first, last, inner, x, m.rows, wide, heads * size)
    wait(m, team)
    first, last = share(m.rows * heads, 1, me, team)
    for task in range(first, last):
        enter(m, layer, task // heads, task % heads, wide + task * size, own)
    wait(m, team)
    powers = own + m.capacity * 4
    first, last = share(m.rows * m.heads, 1, me, team)
    for task in range(first, last):
        row, head = task // m.heads, task % m.heads
        query = wide + (row * heads + head) * size
        attend(m, layer, row, head, query, found + task * size, own, powers)
    wait(m, team)
    first, last = share(m.hidden, LANES, me, team)
    width = m.heads * m.head_dim
    product(m.half, layer.out, layer.out_bias, first, last, width, found, m.rows, out, m.hidden * 4)


@_part
def mlp(m: Any, layer: Any, me: int, team: int, x: int, own: int, out: int) -> None:
    """From normed states x [rows, hidden] to out [rows, hidden], of which each thread has its columns."""
    wide, gated = m.shared, m.shared + m.rows * m.inter * 8
    first, last = share(m.inter, LANES, me, team)
    for column in (0, m.inter):
        a, b = first + column, last + column
        product(m.half, layer.gate_up, layer.gate_up_bias, a, b, m.hidden, x, m.rows, wide, m.inter * 8)
    gate(m.rows, m.inter, first, last, wide, gated, own)
    wait(m, team)
    first, last = share(m.hidden, LANES, me, team)
    product(m.half, layer.down, layer.down_bias, first, last, m.inter, gated, m.rows, out, m.hidden * 4)


@_part
def block(m: Any, layer: Any, me: int, team: int, own: int, more: int) -> None:
    """One decoder block: what attention and MLP have to add, added to x."""
    first, last = share(m.hidden, LANES, me, team)
    norms(m.x, layer.input_norm, m.rows, m.hidden, m.eps, own)
    attention(m, layer, me, team, own, m.hidden, own, more)
    add(first, last, m.rows, m.hidden, m.x, more)
    wait(m, team)
    norms(m.x, layer.post_norm, m.rows, m.hidden, m.eps, own)
    mlp(m, layer, me, team, own, own, more)
    add(first, last, m.rows, m.hidden, m.x, more)
    wait(m, team)


@_part
def tap(m: Any, to: int) -> None:
    """Copies x to a tap's rows."""
    for row in range(m.rows):
        store(False, m.x + row * m.hidden * 4, m.hidden, to + row * m.tap_step)


@_part
def run(m: Any, me: int, team: int) -> None:
    """All blocks and the head, as one of the team."""
    own = m.own + me * m.own_step
    layers = carray(pointer(m.blocks), (m.layers,), LAYER)
    for index in range(m.layers):
        layer = layers[index]
        block(m, layer, me, team, own, m.more)
        if layer.tap and me == 0:
            tap(m, layer.tap)
    norms(m.x, m.norm, m.rows, m.hidden, m.eps, own)
    if me == 0 and m.normed:
        for row in range(m.rows):
            store(False, own + row * m.hidden * 4, m.hidden, m.normed + row * m.tap_step)
    skipped = m.rows - 1 if m.last_only else 0
    first, last = share(m.outputs, LANES, me, team)
    states, rows = own + skipped * m.hidden * 4, m.rows - skipped
    product(m.half, m.head, 0, first, last, m.hidden, states, rows, m.result, m.outputs * 4)


class Calls(NamedTuple):
    """The calls as numba compiled them; each takes the address of a record."""

    forward: Any
    """A thread's part of one call of a `MODEL`."""
    attention: Any
    """A thread's part of a block's attention, from normed states `x` [rows, inner] to `result`."""
    mlp: Any
    """A thread's part of a block's MLP, from normed states `x` [rows, hidden] to `result`."""
    multiply: Any
    """A thread's part of one `PRODUCT`."""


def compiled(sources: int) -> Calls:
    """The calls, compiled or read from where their machine code is kept. numba takes kept code for good when
    this file and what the functions close over are as they were; so each closes over `sources`, a number that
    stands for everything else that is compiled into them."""
    call = cfunc(types.void(types.voidptr), cache=True)

    @call
    def forward(facts: Any) -> None:
        _ = sources
        run(carray(facts, (1,), MODEL)[0], int(_thread()), int(_threads()))

    @call
    def attention_alone(facts: Any) -> None:
        _ = sources
        m, me = carray(facts, (1,), MODEL)[0], int(_thread())
        layer = carray(pointer(m.blocks), (1,), LAYER)[0]
        attention(m, layer, me, int(_threads()), m.x, m.inner, m.own + me * m.own_step, m.result)

    @call
    def mlp_alone(facts: Any) -> None:
        _ = sources
        m, me = carray(facts, (1,), MODEL)[0], int(_thread())
        layer = carray(pointer(m.blocks), (1,), LAYER)[0]
        mlp(m, layer, me, int(_threads()), m.x, m.own + me * m.own_step, m.result)

    @call
    def multiply(facts: Any) -> None:
        _ = sources
        p = carray(facts, (1,), PRODUCT)[0]
        first, last = share(p.outputs, LANES, int(_thread()), int(_threads()))
        product(p.half, p.weight, p.bias, first, last, p.inner, p.x, p.rows, p.out, p.outputs * 4)

    return Calls(forward, attention_alone, mlp_alone, multiply)
