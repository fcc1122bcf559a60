"""Rows of values in vector instructions, written out: the compiler's own pay for long rows only.

A loop that the compiler turns into vectors first asks whether its arrays overlap, then takes 32
values at a time, and the rest one by one. A row of twenty labels is all rest. With such loops in
place of what is here a whole ``sample`` takes 1.4 to 1.7 times the CPU seconds, for the same votes
(three pairs of runs, 128 samples of problem ``brain-0.4`` of ``lab/benchmarks/problems.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line
FARTHEST = 8 * LINE  # of a longer row the processor guesses the rest
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

        ``begin`` gives what a sum starts with and ``write`` takes it, both with its index in the
        row. Rows that are ``ahead`` entries later, before ``end``, are fetched meanwhile.
        """
        builder = self._builder
        size = builder.mul(self._width, self._values.itemsize)
        counter, entry = (cgutils.alloca_once(builder, INDEX) for _ in range(2))
        builder.store(ir.Constant(INDEX, 0), counter)
        for vectors, lanes in ((6, 16), (2, 16), (2, 8), (2, 4), (1, 1)):
            kind = ir.VectorType(FLOAT, lanes)
            totals = [cgutils.alloca_once(builder, kind) for _ in range(vectors)]
            last_start = builder.sub(self._width, ir.Constant(INDEX, lanes))
            stop = self._width
            if vectors == 2:  # the rest of a row, whose last vectors may overlap
                fits = builder.icmp_signed(">=", last_start, ir.Constant(INDEX, 0))
                beyond = builder.add(self._width, ir.Constant(INDEX, vectors * lanes - 1))
                stop = builder.select(fits, beyond, ir.Constant(INDEX, 0))
            with _steps(builder, counter, stop, vectors * lanes) as k:
                starts = [builder.add(k, ir.Constant(INDEX, n * lanes)) for n in range(vectors)]
                if vectors == 2:
                    starts = [_smaller(builder, at, last_start) for at in starts]
                for at, total in zip(starts, totals):
                    builder.store(begin(at, lanes), total)
                builder.store(first, entry)
                with _steps(builder, entry, last, 1) as e:
                    later = builder.add(e, ahead)
                    begins = builder.icmp_signed("==", k, ir.Constant(INDEX, 0))
                    there = builder.icmp_signed("<", later, end)
                    with builder.if_then(builder.and_(begins, there)):
                        _fetch_lines(builder, builder.bitcast(self._row(later), BYTES), size)
                    row = self._row(e)
                    factor = builder.load(builder.gep(self._factors.data, [e]))
                    factor = _everywhere(builder, factor, lanes)
                    for at, total in zip(starts, totals):
                        x = _load(builder, self._kind, row, at, lanes)
                        builder.store(_multiply_add(builder, factor, x, builder.load(total)), total)
                for at, total in zip(starts, totals):
                    write(at, builder.load(total))

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
    means nothing. ``first`` and ``last`` count the elements of arrays of any shape. Nothing is
    fetched ahead: the processor itself looks as far ahead in rows so short.
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
        builder.store(_pack(builder, cgutils.unpack_tuple(builder, arguments[0])), total)
        counter = cgutils.alloca_once(builder, INDEX)
        builder.store(context.cast(builder, arguments[4], first, types.intp), counter)
        end = context.cast(builder, arguments[5], last, types.intp)
        with _steps(builder, counter, end, 1) as e:
            column = builder.load(builder.gep(numbers.data, [e]))
            start = builder.mul(context.cast(builder, column, columns.dtype, types.intp), width)
            factor = _everywhere(builder, builder.load(builder.gep(factors.data, [e])), NARROW)
            with builder.if_else(builder.icmp_signed("<=", start, whole)) as (inside, near_end):
                with inside:
                    row = _load(builder, source.dtype, values.data, start, NARROW)
                    builder.store(_multiply_add(builder, factor, row, builder.load(total)), total)
                with near_end:
                    row = _last_values(builder, source.dtype, values.data, start, width)
                    builder.store(_multiply_add(builder, factor, row, builder.load(total)), total)
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
        counter = context.cast(builder, arguments[1], i, types.intp)
        _fetch(builder, builder.bitcast(builder.gep(array.data, [counter]), BYTES))
        return context.get_dummy_value()

    return types.void(values, i), generate


def _smaller(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _fetch_lines(builder, start, size):
    """Ask for so many bytes from an address on, or for the first of them."""
    size = _smaller(builder, size, ir.Constant(INDEX, FARTHEST))
    counter = cgutils.alloca_once(builder, INDEX)
    builder.store(ir.Constant(INDEX, 0), counter)
    with _steps(builder, counter, size, LINE) as k:
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
def _steps(builder, counter, width, size) -> Iterator[ir.Value]:
    """Write a loop that goes on from ``counter`` in steps of ``size`` as long as they fit."""
    test, body, done = (builder.append_basic_block(name) for name in ("test", "body", "done"))
    builder.branch(test)
    builder.position_at_end(test)
    here = builder.load(counter)
    after = builder.add(here, ir.Constant(INDEX, size))
    builder.cbranch(builder.icmp_signed("<=", after, width), body, done)
    builder.position_at_end(body)
    yield here
    builder.store(after, counter)
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
    return _pack(builder, lanes)


def _pack(builder, values):
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


def _multiply_add(builder, a, b, c):
    """Return a·b + c with one rounding."""
    signature = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.v{a.type.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])
