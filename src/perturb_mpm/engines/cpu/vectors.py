"""Rows of values in vector instructions, written out: the compiler's own pay for long rows only.

A loop that the compiler turns into vectors first asks whether its arrays overlap, then takes 32
values at a time, and the rest one by one. A row of twenty labels is all rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line
FARTHEST = 8 * LINE  # of a longer row the processor guesses the rest
# e^x = 2^n·e^r: n the nearest whole number to x·log2 e, ln 2 in two parts, and a series in r.
LOG2E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUND = np.float32(12582912.0)  # adding and subtracting 1.5·2^23 rounds to a whole number
SMALLEST = np.float32(-87.0)
EXP_SERIES = tuple(
    np.float32(each) for each in (1.3888889e-3, 8.3333333e-3, 4.1666668e-2, 0.16666667, 0.5, 1, 1)
)
AHEAD = 32  # entries of a sparse matrix: time enough to fetch a row
NEXT = 4  # voxels, of about as many entries
NARROW = 4  # values of a row that fits into one vector
INDEX, SWITCH = ir.IntType(64), ir.IntType(32)
FLOAT = ir.FloatType()
BYTES = ir.IntType(8).as_pointer()


@intrinsic
def write_sum(typing_context, target, v, source, columns, shares, first, last, end, rounding):
    """Set row v of ``target`` to ``rounding`` + Σ_e shares[e]·source[columns[e]], first ≤ e < last.

    Rows of entries that follow, before ``end``, are fetched meanwhile. Sums go in the order of e
    and stay in registers, 96 values at a time. Into whole numbers of either sign they are rounded
    to the nearest, into those without one they are cut.
    """
    if any(each.layout != "C" for each in (target, source, columns, shares)):
        raise TypingError("write_sum takes C-contiguous arrays")

    def generate(context, builder, signature, arguments):
        into = _row(context, builder, target, arguments[0], v, arguments[1])
        matrix = _Matrix(context, builder, signature.args[2:5], arguments[2:5])
        entries = [
            context.cast(builder, each, kind, types.intp)
            for each, kind in zip(arguments[5:8], (first, last, end))
        ]

        def begin(k, lanes):
            return ir.Constant(ir.VectorType(FLOAT, lanes), [0.0] * lanes)

        def write(k, sums):
            sums = builder.fadd(sums, _everywhere(builder, arguments[8], sums.type.count))
            _store(builder, target.dtype, sums, builder.gep(into, [k]))

        matrix.sum_row(*entries, ir.Constant(INDEX, AHEAD), begin, write)
        return context.get_dummy_value()

    kinds = (target, v, source, columns, shares, first, last, end, rounding)
    return types.void(*kinds), generate


@intrinsic
def write_received(
    typing_context, message, t, own, marginals, i, rows, columns, shares, first, last
):
    """Set row t of ``message`` to own·marginals[i] + Σ_e shares[i, e]·rows[columns[i, e]].

    Entries are first ≤ e < last, in their order, and sums stay in registers as in ``write_sum``.
    """
    if any(each.layout != "C" for each in (message, marginals, rows, columns, shares)):
        raise TypingError("write_received takes C-contiguous arrays")

    def generate(context, builder, signature, arguments):
        into = _row(context, builder, message, arguments[0], t, arguments[1])
        present = _row(context, builder, marginals, arguments[3], i, arguments[4])
        matrix = _Matrix(context, builder, signature.args[5:8], arguments[5:8])
        table = context.make_array(columns)(context, builder, arguments[6])
        voxels, entries = cgutils.unpack_tuple(builder, table.shape)
        before = builder.mul(context.cast(builder, arguments[4], i, types.intp), entries)
        begin_at, end_at = (
            builder.add(before, context.cast(builder, each, kind, types.intp))
            for each, kind in zip(arguments[8:10], (first, last))
        )
        ahead = builder.mul(entries, ir.Constant(INDEX, NEXT))

        def begin(k, lanes):
            values = _load(builder, marginals.dtype, present, k, lanes)
            return builder.fmul(_everywhere(builder, arguments[2], lanes), values)

        def write(k, sums):
            _store(builder, message.dtype, sums, builder.gep(into, [k]))

        whole = builder.mul(voxels, entries)
        matrix.sum_row(begin_at, end_at, whole, ahead, begin, write)
        return context.get_dummy_value()

    kinds = (message, t, own, marginals, i, rows, columns, shares, first, last)
    return types.void(*kinds), generate


class _Matrix:
    """A sparse matrix that combines the rows of a source, in the code that is being written."""

    def __init__(self, context, builder, kinds, arguments) -> None:
        self._context, self._builder = context, builder
        self._kind, self._number_kind = kinds[0].dtype, kinds[1].dtype
        self._values, self._numbers, self._factors = (
            context.make_array(kind)(context, builder, each) for kind, each in zip(kinds, arguments)
        )
        self._width = cgutils.unpack_tuple(builder, self._values.shape)[1]

    def sum_row(self, first, last, end, ahead, begin, write) -> None:
        """Write the sum over the entries first ≤ e < last, as many values at once as fit.

        ``begin`` gives what a sum starts with and ``write`` takes it, both with its place in the
        row. Rows that are ``ahead`` entries later, before ``end``, are fetched meanwhile.
        """
        builder = self._builder
        size = builder.mul(self._width, self._values.itemsize)
        place, entry = (cgutils.alloca_once(builder, INDEX) for _ in range(2))
        builder.store(ir.Constant(INDEX, 0), place)
        for vectors, lanes in ((6, 16), (2, 16), (1, 8), (1, 1)):
            offsets = [ir.Constant(INDEX, n * lanes) for n in range(vectors)]
            kind = ir.VectorType(FLOAT, lanes)
            totals = [cgutils.alloca_once(builder, kind) for _ in range(vectors)]
            with steps(builder, place, self._width, vectors * lanes) as k:
                for offset, total in zip(offsets, totals):
                    builder.store(begin(builder.add(k, offset), lanes), total)
                builder.store(first, entry)
                with steps(builder, entry, last, 1) as e:
                    later = builder.add(e, ahead)
                    begins = builder.icmp_signed("==", k, ir.Constant(INDEX, 0))
                    there = builder.icmp_signed("<", later, end)
                    with builder.if_then(builder.and_(begins, there)):
                        _fetch_lines(builder, builder.bitcast(self._row(later), BYTES), size)
                    row = builder.gep(self._row(e), [k])
                    factor = builder.load(builder.gep(self._factors.data, [e]))
                    factor = _everywhere(builder, factor, lanes)
                    for offset, total in zip(offsets, totals):
                        x = _load(builder, self._kind, row, offset, lanes)
                        builder.store(_fused(builder, factor, x, builder.load(total)), total)
                for offset, total in zip(offsets, totals):
                    write(builder.add(k, offset), builder.load(total))

    def _row(self, entry):
        """Return where the row of an entry starts."""
        builder = self._builder
        column = builder.load(builder.gep(self._numbers.data, [entry]))
        column = self._context.cast(builder, column, self._number_kind, types.intp)
        return builder.gep(self._values.data, [builder.mul(column, self._width)])


@intrinsic
def sum_narrow(typing_context, begin, source, columns, shares, first, last):
    """Return ``begin`` + Σ_e shares[e]·source[columns[e]], first ≤ e < last, in the order of e.

    Rows have at most four values, and four of them are returned: what lies behind a shorter row
    means nothing. Rows of entries that follow are fetched meanwhile. ``first`` and ``last`` count
    the elements of arrays of any shape.
    """
    if any(each.layout != "C" for each in (source, columns, shares)):
        raise TypingError("sum_narrow takes C-contiguous arrays")
    floats = ir.VectorType(FLOAT, NARROW)

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
        size = ir.Constant(INDEX, 1)
        for length in cgutils.unpack_tuple(builder, numbers.shape):
            size = builder.mul(size, length)
        with steps(builder, place, end, 1) as e:
            later = builder.add(e, ir.Constant(INDEX, AHEAD))
            with builder.if_then(builder.icmp_signed("<", later, size)):
                column = builder.load(builder.gep(numbers.data, [later]))
                ahead = builder.mul(context.cast(builder, column, columns.dtype, types.intp), width)
                _fetch(builder, builder.bitcast(builder.gep(values.data, [ahead]), BYTES))
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
def fetch_value(typing_context, values, i):
    """Ask for element i of one axis to be brought into the cache."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(values)(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], i, types.intp)
        _fetch(builder, builder.bitcast(builder.gep(array.data, [place]), BYTES))
        return context.get_dummy_value()

    return types.void(values, i), generate


class Lanes:
    """Values of some problems side by side, in the code that is being written.

    Each method writes one instruction or a few; what they compute is exact to the bit.
    """

    def __init__(self, builder, count) -> None:
        self._builder, self._count = builder, count
        self._floats = ir.VectorType(FLOAT, count)
        self._wholes = ir.VectorType(SWITCH, count)

    def constant(self, value):
        """Return the same float32 in all lanes."""
        return ir.Constant(self._floats, [float(value)] * self._count)

    def whole(self, value):
        """Return the same 32-bit whole number in all lanes."""
        return ir.Constant(self._wholes, [value] * self._count)

    def all(self, value):
        """Return a float32 in all lanes."""
        return _everywhere(self._builder, value, self._count)

    def variable(self, value):
        """Return a place in memory, or a register, that holds a value."""
        place = cgutils.alloca_once(self._builder, value.type)
        self._builder.store(value, place)
        return place

    def add(self, a, b):
        """Return a + b."""
        return self._builder.fadd(a, b)

    def subtract(self, a, b):
        """Return a − b."""
        return self._builder.fsub(a, b)

    def multiply(self, a, b):
        """Return a·b."""
        return self._builder.fmul(a, b)

    def divide(self, a, b):
        """Return a/b."""
        return self._builder.fdiv(a, b)

    def negative(self, a):
        """Return −a."""
        return self._builder.fneg(a)

    def fused(self, a, b, c):
        """Return a·b + c with one rounding."""
        return _fused(self._builder, a, b, c)

    def sum(self, values):
        """Return the sum of values in their order."""
        total = values[0]
        for value in values[1:]:
            total = self.add(total, value)
        return total

    def where(self, relation, a, b, then, otherwise):
        """Return ``then`` where the relation between a and b holds."""
        builder = self._builder
        return builder.select(builder.fcmp_ordered(relation, a, b), then, otherwise)

    def larger(self, a, b):
        """Return a where it is larger than b, else b."""
        return self.where(">", a, b, a, b)

    def larger_size(self, a, b):
        """Return the larger of two that are not below 0, whose bits rise with them.

        Of floats the compiler would make a store under a mask, which some processors are slow at.
        """
        builder = self._builder
        a, b = builder.bitcast(a, self._wholes), builder.bitcast(b, self._wholes)
        return builder.bitcast(builder.select(builder.icmp_signed(">", a, b), a, b), self._floats)

    def size_of(self, a):
        """Return |a|."""
        signature = ir.FunctionType(self._floats, [self._floats])
        name = f"llvm.fabs.v{self._count}f32"
        return self._builder.call(
            cgutils.get_or_insert_function(self._builder.module, signature, name), [a]
        )

    def exp_negative(self, x):
        """Return e^x for x ≤ 0, as ``row_kernels.exp_negative`` does."""
        builder = self._builder
        shift = self.constant(ROUND)
        x = self.larger(x, self.constant(SMALLEST))
        whole = self.subtract(self.fused(x, self.constant(LOG2E), shift), shift)
        rest = self.fused(whole, self.constant(-LN2_HIGH), x)
        rest = self.fused(whole, self.constant(-LN2_LOW), rest)
        p = self._series(EXP_SERIES, rest)
        exponent = builder.add(builder.fptosi(whole, self._wholes), self.whole(127))
        power = builder.bitcast(builder.shl(exponent, self.whole(23)), self._floats)
        return self.multiply(p, power)

    def _series(self, coefficients, x):
        """Return a polynomial of x, its highest power first."""
        total = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fused(total, x, self.constant(coefficient))
        return total

    def load(self, kind, start):
        """Return values of an array as float32."""
        return _load(self._builder, kind, start, INDEX(0), self._count)

    def store(self, kind, values, start):
        """Store float32 values in an array: rounded to signed whole numbers, cut to others."""
        _store(self._builder, kind, values, start)

    def load_float(self, start):
        """Return float32 values."""
        return self.load(types.float32, start)

    def store_float(self, values, start):
        """Store float32 values."""
        self.store(types.float32, values, start)

    def load_energy(self, start):
        """Return float32 values, or halves that stand there as 16 bits."""
        if start.type.pointee == FLOAT:
            return self.load_float(start)
        halves = ir.VectorType(ir.HalfType(), self._count)
        stored = self._builder.load(self._builder.bitcast(start, halves.as_pointer()), align=2)
        return self._builder.fpext(stored, self._floats)

    def store_energy(self, values, start):
        """Store float32 values, or the 16 bits of the nearest halves."""
        if start.type.pointee == FLOAT:
            self.store_float(values, start)
            return
        builder, halves = self._builder, ir.VectorType(ir.HalfType(), self._count)
        near = builder.fptrunc(values, halves)
        builder.store(near, builder.bitcast(start, halves.as_pointer()), align=2)

    def load_label(self, start):
        """Return labels of 8 bits as whole numbers of 32."""
        narrow = ir.VectorType(ir.IntType(8), self._count)
        stored = self._builder.load(self._builder.bitcast(start, narrow.as_pointer()), align=1)
        return self._builder.zext(stored, self._wholes)

    def store_label(self, labels, start):
        """Store labels in 8 bits."""
        builder, narrow = self._builder, ir.VectorType(ir.IntType(8), self._count)
        less = builder.trunc(labels, narrow)
        builder.store(less, builder.bitcast(start, narrow.as_pointer()), align=1)


def _fetch_lines(builder, start, size):
    """Ask for so many bytes from an address on, or for the first of them."""
    most = ir.Constant(INDEX, FARTHEST)
    size = builder.select(builder.icmp_signed("<", size, most), size, most)
    place = cgutils.alloca_once(builder, INDEX)
    builder.store(ir.Constant(INDEX, 0), place)
    with steps(builder, place, size, LINE) as k:
        _fetch(builder, builder.gep(start, [k]))
    _fetch(builder, builder.gep(start, [builder.sub(size, ir.Constant(INDEX, 1))]))


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
def steps(builder, place, width, size) -> Iterator[ir.Value]:
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
    floats = ir.VectorType(FLOAT, lanes)
    return builder.sitofp(values, floats) if kind.signed else builder.uitofp(values, floats)


def _store(builder, kind, sums, start):
    """Store float32 sums as values of an array."""
    if kind != types.float32:
        numbers = ir.VectorType(SWITCH, sums.type.count)
        if kind.signed:
            nearest = ir.Constant(sums.type, [1.5 * 2**23] * sums.type.count)
            sums = builder.fsub(builder.fadd(sums, nearest), nearest)
        sums = builder.fptosi(sums, numbers)
        sums = builder.trunc(sums, ir.VectorType(start.type.pointee, sums.type.count))
    builder.store(sums, builder.bitcast(start, sums.type.as_pointer()), align=kind.bitwidth // 8)


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
    vector = ir.Constant(ir.VectorType(FLOAT, len(values)), ir.Undefined)
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
