"""Rows of values in vector instructions, written out: the compiler's own pay for long rows only.

A loop that the compiler turns into vectors first asks whether its arrays overlap, then takes 32
values at a time, and the rest one by one. A row of twenty labels is all rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

LANES = (8, 4, 1)
LINE = 64  # bytes of a cache line
FARTHEST = 8 * LINE  # of a longer row the processor guesses the rest
INDEX, SWITCH = ir.IntType(64), ir.IntType(32)


@intrinsic
def add_rows(typing_context, total, t, source, columns, shares):
    """Add Σ_e shares[e]·source[columns[e]] to row t of float32 ``total``, in the order of e.

    ``columns`` and ``shares`` are tuples; ``source`` is float32, or whole numbers.
    """
    if total.layout != "C" or source.layout != "C" or total.dtype != types.float32:
        raise TypingError("add_rows takes C-contiguous arrays, and a float32 total")

    def generate(context, builder, signature, arguments):
        into = _row(context, builder, total, arguments[0], t, arguments[1])
        factors = cgutils.unpack_tuple(builder, arguments[4])
        places = cgutils.unpack_tuple(builder, arguments[3])
        rows = [
            _row(context, builder, source, arguments[2], columns.dtype, each) for each in places
        ]
        array = context.make_array(source)(context, builder, arguments[2])
        width = cgutils.unpack_tuple(builder, array.shape)[1]
        place = cgutils.alloca_once(builder, INDEX)
        builder.store(ir.Constant(INDEX, 0), place)
        for lanes in LANES:
            with _steps(builder, place, width, lanes) as k:
                sums = _load(builder, total.dtype, into, k, lanes)
                for row, factor in zip(rows, factors):
                    values = _load(builder, source.dtype, row, k, lanes)
                    sums = _fused(builder, _everywhere(builder, factor, lanes), values, sums)
                there = builder.bitcast(builder.gep(into, [k]), sums.type.as_pointer())
                builder.store(sums, there, align=4)
        return context.get_dummy_value()

    return types.void(total, t, source, columns, shares), generate


@intrinsic
def fetch_row(typing_context, rows, i):
    """Ask for row i to be brought into the cache."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        start = builder.bitcast(_row(context, builder, rows, arguments[0], i, arguments[1]), byte)
        array = context.make_array(rows)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, array.shape)[1]
        size = builder.mul(width, array.itemsize)
        most = ir.Constant(INDEX, FARTHEST)
        size = builder.select(builder.icmp_signed("<", size, most), size, most)
        signature = ir.FunctionType(ir.VoidType(), [byte, SWITCH, SWITCH, SWITCH])
        fetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
        how = [ir.Constant(SWITCH, each) for each in (0, 3, 1)]  # for reading, to keep, data
        place = cgutils.alloca_once(builder, INDEX)
        builder.store(ir.Constant(INDEX, 0), place)
        with _steps(builder, place, size, LINE) as k:
            builder.call(fetch, [builder.gep(start, [k]), *how])
        last = builder.sub(size, ir.Constant(INDEX, 1))
        builder.call(fetch, [builder.gep(start, [last]), *how])
        return context.get_dummy_value()

    return types.void(rows, i), generate


def _row(context, builder, kind, value, index_kind, index):
    """Return where a row of an array starts."""
    array = context.make_array(kind)(context, builder, value)
    row = context.cast(builder, index, index_kind, types.intp)
    return cgutils.get_item_pointer(context, builder, kind, array, [row, INDEX(0)])


@contextmanager
def _steps(builder, place, width, size) -> Iterator[ir.Value]:
    """Write a loop that goes on from ``place`` in steps of ``size`` as long as they fit."""
    test, body, done = (builder.append_basic_block(name) for name in ("test", "body", "done"))
    builder.branch(test)
    builder.position_at_end(test)
    here = builder.load(place)
    after = builder.add(here, ir.Constant(INDEX, size))
    builder.cbranch(builder.icmp_signed("<=", after, width), body, done)
    builder.position_at_end(body)
    yield here
    builder.store(after, place)
    builder.branch(test)
    builder.position_at_end(done)


def _load(builder, kind, row, k, lanes):
    """Return values of a row from k on as float32."""
    start = builder.gep(row, [k])
    pointer = builder.bitcast(start, ir.VectorType(start.type.pointee, lanes).as_pointer())
    values = builder.load(pointer, align=kind.bitwidth // 8)
    if kind == types.float32:
        return values
    floats = ir.VectorType(ir.FloatType(), lanes)
    return builder.sitofp(values, floats) if kind.signed else builder.uitofp(values, floats)


def _everywhere(builder, value, lanes):
    wide = ir.VectorType(value.type, lanes)
    undefined = ir.Constant(wide, ir.Undefined)
    first = builder.insert_element(undefined, value, SWITCH(0))
    zeros = ir.Constant(ir.VectorType(SWITCH, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


def _fused(builder, a, b, c):
    """Return a·b + c with one rounding."""
    signature = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.v{a.type.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])
