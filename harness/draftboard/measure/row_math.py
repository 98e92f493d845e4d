"""The arithmetic that `kernels` are made of: products, norms, softmax and SwiGLU over rows at addresses.

Rows are float32 and lie behind one another; weights, keys and values may be bfloat16 (`half`). Everything is
compiled into the kernels that use it, and takes its sums in the order of `vectors`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from draftboard.measure.vectors import LANES, dots, mixture, pointer

_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_ROUNDER = np.float32(12582912.0)
"""1.5 * 2^23: added and taken away again, it rounds a float32 to a whole number."""
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
"""Beyond these a power of two has no exponent left in float32."""
_CUBIC = tuple(np.float32(p) for p in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3))
_SQUARE = tuple(np.float32(p) for p in (4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
"""exp on [-ln 2 / 2, ln 2 / 2], after Cephes (Moshier): 1 + r + r^2 * polynomial."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
"""A row of numbers at an address."""

_part = njit(error_model="numpy")


@_part
def floats(address: int, count: int) -> Floats:
    """float32 [count] at an address."""
    found: Floats = carray(pointer(address), (count,), np.float32)
    return found


@_part
def few(half: int, weight: int, inner: int, x: int, rows: int, out: int, step: int) -> None:
    """Up to four rows of x times one row of a weight."""
    x_step = inner * 4
    if half:
        if rows == 1:
            dots(1, 1, weight, x, x_step, inner, out, step)
        elif rows == 2:
            dots(2, 1, weight, x, x_step, inner, out, step)
        elif rows == 3:
            dots(3, 1, weight, x, x_step, inner, out, step)
        else:
            dots(4, 1, weight, x, x_step, inner, out, step)
    elif rows == 1:
        dots(1, 0, weight, x, x_step, inner, out, step)
    elif rows == 2:
        dots(2, 0, weight, x, x_step, inner, out, step)
    elif rows == 3:
        dots(3, 0, weight, x, x_step, inner, out, step)
    else:
        dots(4, 0, weight, x, x_step, inner, out, step)


@_part
def product(
    half: int,
    weight: int,
    bias: int,
    first: int,
    last: int,
    inner: int,
    x: int,
    rows: int,
    out: int,
    step: int,
) -> None:
    """Outputs first..last of rows of x [rows, inner] times a weight, into out, rows `step` bytes apart."""
    size = inner * (2 if half else 4)
    for output in range(first, last):
        for row in range(0, rows, 4):
            place = out + row * step + output * 4
            few(half, weight + output * size, inner, x + row * inner * 4, min(4, rows - row), place, step)
    if bias:
        added = floats(bias, last)
        for row in range(rows):
            found = floats(out + row * step, last)
            for output in range(first, last):
                found[output] += added[output]


@_part
def norm(x: int, weight: int, size: int, eps: float, out: int) -> None:
    """Root mean square norm of one row."""
    row, scaled = floats(x, size), floats(out, size)
    dots(1, 0, x, x, 0, size, out, 0)
    scale = np.float32(1) / np.sqrt(scaled[0] / np.float32(size) + eps)
    factors = floats(weight, size)
    for i in range(size):
        scaled[i] = row[i] * scale * factors[i]


@_part
def norms(x: int, weight: int, rows: int, size: int, eps: float, out: int) -> None:
    """`norm` of several rows."""
    for row in range(rows):
        norm(x + row * size * 4, weight, size, eps, out + row * size * 4)


@_part
def exponential(x: Floats, powers: Floats) -> None:
    """exp of x float32 [n], in place; powers float32 [n] is room to work in."""
    bits = powers.view(np.int32)
    for i in range(len(x)):
        value = min(max(x[i], _LEAST), _MOST)
        whole = (value * _LOG2E + _ROUNDER) - _ROUNDER
        r = value - whole * _LN2_HIGH - whole * _LN2_LOW
        p = (_CUBIC[0] * r + _CUBIC[1]) * r + _CUBIC[2]
        p = ((p * r + _SQUARE[0]) * r + _SQUARE[1]) * r + _SQUARE[2]
        x[i] = p * r * r + r + np.float32(1)
        bits[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    for i in range(len(x)):
        x[i] *= powers[i]


@_part
def softmax(scores: Floats, powers: Floats, scale: float) -> None:
    """softmax(scores * scale), in place."""
    most = scores[0]
    for i in range(1, len(scores)):
        most = max(most, scores[i])
    for i in range(len(scores)):
        scores[i] = (scores[i] - most) * scale
    exponential(scores, powers)
    total = np.float32(0)
    for i in range(len(scores)):
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total


@_part
def store(half: int, source: int, count: int, place: int) -> None:
    """float32 [count] kept as float32 or, rounded to the nearest, as bfloat16."""
    if half:
        bits = carray(pointer(source), (count,), np.uint32)
        kept = carray(pointer(place), (count,), np.uint16)
        for i in range(count):
            odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
            kept[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    else:
        numbers, copied = floats(source, count), floats(place, count)
        for i in range(count):
            copied[i] = numbers[i]


@_part
def mix(half: int, shares: int, values: int, step: int, count: int, width: int, out: int) -> None:
    """The sum of `count` rows of values, each times its share."""
    size, part = 2 if half else 4, 0
    while part < width:
        place, column = out + part * 4, values + part * size
        if width - part >= 4 * LANES:
            if half:
                mixture(4, 1, shares, column, step, count, place)
            else:
                mixture(4, 0, shares, column, step, count, place)
            part += 4 * LANES
        else:
            if half:
                mixture(1, 1, shares, column, step, count, place)
            else:
                mixture(1, 0, shares, column, step, count, place)
            part += LANES


@_part
def add(first: int, last: int, rows: int, width: int, x: int, more: int) -> None:
    """x += more for columns first..last of [rows, width]."""
    for row in range(rows):
        numbers, added = floats(x + row * width * 4, width), floats(more + row * width * 4, width)
        for i in range(first, last):
            numbers[i] += added[i]


@_part
def gate(rows: int, inter: int, first: int, last: int, both: int, out: int, spare: int) -> None:
    """silu(gate) * up for columns first..last; both [rows, 2 * inter], out [rows, inter]."""
    count = last - first
    lower, powers = floats(spare, count), floats(spare + count * 4, count)
    for row in range(rows):
        gates = floats(both + (row * 2 * inter + first) * 4, count)
        ups = floats(both + (row * 2 * inter + inter + first) * 4, count)
        kept = floats(out + (row * inter + first) * 4, count)
        for i in range(count):
            lower[i] = -gates[i]
        exponential(lower, powers)
        for i in range(count):
            kept[i] = gates[i] / (np.float32(1) + lower[i]) * ups[i]
