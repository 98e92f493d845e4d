"""Sums of products over vectors of sixteen numbers, written as instructions for LLVM.

A compiler that sees a loop chooses the order of its sum by the shape of the loop, so one row and four rows
would round differently. Here the order is written down: lane i adds up the products i, i + 16, i + 32, ...,
each fused with its addition, then the lanes are halved onto one another. Whatever number of rows shares a
call, and on whatever processor, a row's sum is the same to the last bit.

Everything is addressed in bytes. Nothing is checked: callers hand over multiples of sixteen numbers.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

LANES = 16
"""Numbers in a vector: two registers of AVX2, one of AVX-512, four of NEON."""

_LONG, _INT = ir.IntType(64), ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_ZEROS = ir.Constant(_FLOATS, [0.0] * LANES)


def _dots(
    _context: Any,
    rows: Any,
    half: Any,
    weight: Any,
    x: Any,
    x_step: Any,
    inner: Any,
    out: Any,
    out_step: Any,
) -> Any:
    """One row of a weight times `rows` (a literal) rows of x: out[r] = sum over i of weight[i] * x[r, i].

    weight: `inner` numbers, bfloat16 where `half` (a literal) is 1, else float32; x and out: float32, their
    rows `x_step` and `out_step` bytes apart.
    """
    count, narrow = rows.literal_value, bool(half.literal_value)
    signature = types.void(rows, half, *[types.int64] * 6)

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        weight, x, x_step, inner, out, out_step = args[2:]
        starts = [b.add(x, b.mul(x_step, _LONG(row))) for row in range(count)]

        def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            factor = _load(b, b.add(weight, b.mul(i, _LONG(2 if narrow else 4))), narrow)
            others = [_load(b, b.add(start, b.mul(i, _LONG(4)))) for start in starts]
            return [_fused(b, factor, other, total) for other, total in zip(others, sums, strict=True)]

        for row, total in enumerate(_loop(b, inner, LANES, count, step)):
            place = b.add(out, b.mul(out_step, _LONG(row)))
            b.store(_halved(b, total), b.inttoptr(place, ir.FloatType().as_pointer()))
        return context.get_dummy_value()

    return signature, generate


def _mixture(
    _context: Any,
    vectors: Any,
    half: Any,
    shares: Any,
    values: Any,
    value_step: Any,
    count: Any,
    out: Any,
) -> Any:
    """out = sum over j of shares[j] * values[j], for `vectors` (a literal) neighbouring vectors of a value.

    shares: float32 [count]; values: `count` rows, `value_step` bytes apart, bfloat16 where `half` (a literal)
    is 1; out: float32.
    """
    width, narrow = vectors.literal_value, bool(half.literal_value)
    signature = types.void(vectors, half, *[types.int64] * 5)

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        shares, values, value_step, count, out = args[2:]

        def step(j: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            place = b.inttoptr(b.add(shares, b.mul(j, _LONG(4))), ir.FloatType().as_pointer())
            share = _spread(b, b.load(place))
            row, size = b.add(values, b.mul(j, value_step)), LANES * (2 if narrow else 4)
            parts = [_load(b, b.add(row, _LONG(size * part)), narrow) for part in range(width)]
            return [_fused(b, share, part, total) for part, total in zip(parts, sums, strict=True)]

        for part, total in enumerate(_loop(b, count, 1, width, step)):
            place = b.inttoptr(b.add(out, _LONG(LANES * 4 * part)), _FLOATS.as_pointer())
            b.store(total, place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _pointer(_context: Any, address: Any) -> Any:
    """An address as a pointer, for `numba.carray`."""
    return types.voidptr(types.int64), lambda _c, b, _s, args: b.inttoptr(args[0], ir.IntType(8).as_pointer())


def _arrive(_context: Any, address: Any) -> Any:
    """Adds 1 to the int64 at an address, as one step in the eyes of all threads; returns what was there."""

    def generate(_c: Any, b: ir.IRBuilder, _s: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], _LONG.as_pointer()), _LONG(1), "acq_rel")

    return types.int64(types.int64), generate


def _seen(_context: Any, address: Any) -> Any:
    """The int64 at an address, as other threads have left it, after a moment's rest."""

    def generate(_c: Any, b: ir.IRBuilder, _s: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            name, kind = "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])
            b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), [])
        return b.load_atomic(b.inttoptr(args[0], _LONG.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


# In Python's eyes these are functions of other arguments than in a kernel's.
dots: Any = intrinsic(prefer_literal=True)(_dots)
mixture: Any = intrinsic(prefer_literal=True)(_mixture)
pointer: Any = intrinsic(_pointer)
arrive: Any = intrinsic(_arrive)
seen: Any = intrinsic(_seen)


def _loop(b: ir.IRBuilder, end: ir.Value, stride: int, sums: int, step: Any) -> list[ir.Value]:
    """Totals of `sums` vectors: `step(i, totals so far)` for i = 0, stride, .. below `end`, at least once."""
    before, body, after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(body)
    b.position_at_end(body)
    i, totals = b.phi(_LONG), [b.phi(_FLOATS) for _ in range(sums)]
    found: list[ir.Value] = step(i, totals)
    following = b.add(i, _LONG(stride))
    for phi, first, later in [
        (i, _LONG(0), following),
        *((t, _ZEROS, f) for t, f in zip(totals, found, strict=True)),
    ]:
        phi.add_incoming(first, before)
        phi.add_incoming(later, body)
    b.cbranch(b.icmp_signed("<", following, end), body, after)
    b.position_at_end(after)
    return found


def _load(b: ir.IRBuilder, address: ir.Value, narrow: bool = False) -> ir.Value:
    """Sixteen numbers as float32; a bfloat16 is the upper half of one."""
    if not narrow:
        return b.load(b.inttoptr(address, _FLOATS.as_pointer()), align=4)
    halves = b.load(b.inttoptr(address, _HALVES.as_pointer()), align=2)
    return b.bitcast(b.shl(b.zext(halves, _INTS), ir.Constant(_INTS, [16] * LANES)), _FLOATS)


def _fused(b: ir.IRBuilder, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    kind, name = ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fma.v{LANES}f32"
    fma = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    return b.call(fma, [left, right, total])


def _spread(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    one = b.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, _INT(0))
    return b.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _halved(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of a vector's lanes: the upper half is added to the lower until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(_INT, width)
        low, high = (ir.Constant(kind, list(range(at, at + width))) for at in (0, width))
        vector = b.fadd(b.shuffle_vector(vector, vector, low), b.shuffle_vector(vector, vector, high))
    return b.extract_element(vector, _INT(0))
