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
NARROW = 4  # values of a row that fits into one vector
INDEX, SWITCH = ir.IntType(64), ir.IntType(32)
BYTES = ir.IntType(8).as_pointer()


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
def sum_narrow(typing_context, begin, source, columns, shares, first, last):
    """Return ``begin`` + Σ_e shares[e]·source[columns[e]], first ≤ e < last, in the order of e.

    Rows have at most four values, and four of them are returned: what lies behind a shorter row
    means nothing. ``first`` and ``last`` count the elements of arrays of any shape.
    """
    if any(each.layout != "C" for each in (source, columns, shares)):
        raise TypingError("sum_narrow takes C-contiguous arrays")
    floats = ir.VectorType(ir.FloatType(), NARROW)

    def generate(context, builder, signature, arguments):
        values, numbers, factors = (
            context.make_array(kind)(context, builder, each)
            for kind, each in zip((source, columns, shares), arguments[1:4])
        )
        rows, width = cgutils.unpack_tuple(builder, values.shape)
        whole = builder.sub(builder.mul(rows, width), ir.Constant(INDEX, NARROW))
        total = cgutils.alloca_once(builder, floats)
        builder.store(_packed(builder, cgutils.unpack_tuple(builder, arguments[0])), total)
        place = cgutils.alloca_once(builder, INDEX)
        builder.store(context.cast(builder, arguments[4], first, types.intp), place)
        end = context.cast(builder, arguments[5], last, types.intp)
        with _steps(builder, place, end, 1) as e:
            column = builder.load(builder.gep(numbers.data, [e]))
            start = builder.mul(context.cast(builder, column, columns.dtype, types.intp), width)
            factor = _everywhere(builder, builder.load(builder.gep(factors.data, [e])), NARROW)
            with builder.if_else(builder.icmp_signed("<=", start, whole)) as (inside, near_end):
                with inside:
                    row = _load(builder, source.dtype, values.data, start, NARROW)
                    builder.store(_fused(builder, factor, row, builder.load(total)), total)
                with near_end:
                    row = _last_values(builder, source.dtype, values.data, start, width)
                    builder.store(_fused(builder, factor, row, builder.load(total)), total)
        sums = builder.load(total)
        parts = [builder.extract_element(sums, SWITCH(k)) for k in range(NARROW)]
        return context.make_tuple(builder, types.UniTuple(types.float32, NARROW), parts)

    kinds = (begin, source, columns, shares, first, last)
    return types.UniTuple(types.float32, NARROW)(*kinds), generate


@intrinsic
def fetch_row(typing_context, rows, i):
    """Ask for row i to be brought into the cache."""

    def generate(context, builder, signature, arguments):
        start = _row(context, builder, rows, arguments[0], i, arguments[1])
        array = context.make_array(rows)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, array.shape)[1]
        size = builder.mul(width, array.itemsize)
        most = ir.Constant(INDEX, FARTHEST)
        size = builder.select(builder.icmp_signed("<", size, most), size, most)
        start = builder.bitcast(start, BYTES)
        place = cgutils.alloca_once(builder, INDEX)
        builder.store(ir.Constant(INDEX, 0), place)
        with _steps(builder, place, size, LINE) as k:
            _fetch(builder, builder.gep(start, [k]))
        last = builder.sub(size, ir.Constant(INDEX, 1))
        _fetch(builder, builder.gep(start, [last]))
        return context.get_dummy_value()

    return types.void(rows, i), generate


@intrinsic
def fetch_value(typing_context, values, i):
    """Ask for element i of one axis to be brought into the cache."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(values)(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], i, types.intp)
        _fetch(builder, builder.bitcast(builder.gep(array.data, [place]), BYTES))
        return context.get_dummy_value()

    return types.void(values, i), generate


def _fetch(builder, start):
    """Ask for the cache line at an address."""
    signature = ir.FunctionType(ir.VoidType(), [BYTES, SWITCH, SWITCH, SWITCH])
    fetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    how = [ir.Constant(SWITCH, each) for each in (0, 3, 1)]  # for reading, to keep, data
    builder.call(fetch, [start, *how])


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


def _last_values(builder, kind, values, start, width):
    """Return a row that four values may not be read from, as float32 with zeros behind it."""
    lanes = []
    for k in range(NARROW):
        there = builder.icmp_signed("<", ir.Constant(INDEX, k), width)
        safe = builder.select(there, ir.Constant(INDEX, k), ir.Constant(INDEX, 0))
        one = _load(builder, kind, values, builder.add(start, safe), 1)
        lanes.append(builder.extract_element(one, SWITCH(0)))
    return _packed(builder, lanes)


def _packed(builder, values):
    """Return float32 values as one vector."""
    vector = ir.Constant(ir.VectorType(ir.FloatType(), len(values)), ir.Undefined)
    for k, each in enumerate(values):
        vector = builder.insert_element(vector, each, SWITCH(k))
    return vector


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
