"""The update of one voxel in all problems of a batch, in registers from messages to marginals.

``row_kernels.py`` says what a row is, and does the same by passes over tiles of voxels, which serve
any number of problems and labels. Where a batch is wide enough and labels are few, a voxel's
log-odds, marginals and label stay in registers instead: eight problems at a time, every label of
them. Each number is made by the same operations in the same order, so that it has the same bits.

``each`` is a tuple of L − 1 numbers that stand for labels: code is written for its length. Samples
with held voxels (``held_kernels.py``) have averages of each label and voxel, (L − 1, A), in places
where others have an empty tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from perturb_mpm.engines.cpu.compile import kernel
from perturb_mpm.engines.cpu.vectors import FLOAT, INDEX, Lanes, steps, write_received

WIDE = 8  # problems that are worked on at once, and the least that are worth it
MOST_LABELS = 8  # whose values find room in registers, or close to them
ZERO, ONE = np.float32(0), np.float32(1)
COUNTED = 1 << 20  # voxels whose changes are counted in float32, which is exact up to 2^24


def fits_registers(problems: int, labels: int) -> bool:
    """Return whether these kernels serve so many problems of L − 1 labels."""
    return problems >= WIDE and labels <= MOST_LABELS


@intrinsic
def start_row(typing_context, x, energies, block, t, base, i, each):
    """Set x (L−1, B) to −energies of voxel t of a tile, plus ``base[l, i]`` where it is given."""

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)
        known = code.scalars(base, arguments[4], arguments[5], len(each))

        def write(lanes: Lanes, b: ir.Value) -> None:
            for l in range(len(each)):
                energy = lanes.load_energy(code.energies(1, 2, 3, l, b))
                value = lanes.negative(energy)
                if known:
                    value = lanes.add(value, lanes.all(known[l]))
                lanes.store_float(value, code.at(0, [INDEX(l), b]))

        code.over_problems(0, write)
        return context.get_dummy_value()

    return types.void(x, energies, block, t, base, i, each), generate


@intrinsic
def take_off_row(typing_context, energies, block, t, problems, centre, i, each):
    """Take ``centre[l, i]`` (L, N), against label 0's, off the energies of voxel t of a tile."""

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)
        first, *others = code.scalars(centre, arguments[4], arguments[5], len(each) + 1)
        taken = [builder.fsub(other, first) for other in others]

        def write(lanes: Lanes, b: ir.Value) -> None:
            for l in range(len(each)):
                place = code.energies(0, 1, 2, l, b, problems=arguments[3])
                left = lanes.subtract(lanes.load_energy(place), lanes.all(taken[l]))
                lanes.store_energy(left, place)

        code.over(arguments[3], write)
        return context.get_dummy_value()

    return types.void(energies, block, t, problems, centre, i, each), generate


@intrinsic
def meet_potts(typing_context, x, message, left, each):
    """Take the pairwise energies of a Potts kernel off log-odds x (L−1, B).

    ``message`` (1, (L−1)·B) is what the voxel receives, ``left`` the row sum without itself.
    """

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)

        def write(lanes: Lanes, b: ir.Value) -> None:
            received = code.received(lanes, 1, 0, b, len(each))
            every = lanes.sum(received)
            every = lanes.subtract(every, lanes.all(arguments[2]))
            for l, one in enumerate(received):
                place = code.at(0, [INDEX(l), b])
                value = lanes.add(lanes.load_float(place), lanes.add(one, every))
                lanes.store_float(value, place)

        code.over_problems(0, write)
        return context.get_dummy_value()

    return types.void(x, message, left, each), generate


@intrinsic
def meet_matrix(typing_context, x, message, left, matrices, offsets, g, each):
    """Do what ``meet_potts`` does for the g-th of other compatibilities (``groups.py``)."""

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)
        group = context.cast(builder, arguments[5], g, types.intp)

        def write(lanes: Lanes, b: ir.Value) -> None:
            received = code.received(lanes, 1, 0, b, len(each))
            for l in range(len(each)):
                place = code.at(0, [INDEX(l), b])
                value = lanes.load_float(place)
                constant = builder.fneg(builder.load(code.at(4, [group, INDEX(l)])))
                value = lanes.fused(lanes.all(constant), lanes.all(arguments[2]), value)
                for m, one in enumerate(received):
                    weight = builder.fneg(builder.load(code.at(3, [group, INDEX(l), INDEX(m)])))
                    value = lanes.fused(lanes.all(weight), one, value)
                lanes.store_float(value, place)

        code.over_problems(0, write)
        return context.get_dummy_value()

    return types.void(x, message, left, matrices, offsets, g, each), generate


@intrinsic
def begin_at(
    typing_context, x, sharpness, marginals, i, after, unit, rounding, labels, places, each
):
    """Start voxel i at softmax(sharpness·x), and give it its label, as ``settle_at`` does.

    ``after[l, i]``, where given, is taken off the marginals.
    """

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)
        row = context.cast(builder, arguments[3], i, types.intp)
        averages = code.scalars(after, arguments[4], arguments[3], len(each))
        place = code.place(8, row)

        def write(lanes: Lanes, b: ir.Value) -> None:
            shares, zero, norm = code.softmax(lanes, b, arguments[1], len(each))
            best = code.most_probable(lanes, shares, zero)
            lanes.store_label(best, code.at(7, [place, b]))
            new = [lanes.multiply(share, norm) for share in shares]
            code.store(lanes, 2, row, b, new, averages, arguments[5], arguments[6])

        code.over_problems(0, write)
        return context.get_dummy_value()

    kinds = (x, sharpness, marginals, i, after, unit, rounding, labels, places, each)
    return types.void(*kinds), generate


@intrinsic
def settle_at(
    typing_context,
    x,
    sharpness,
    marginals,
    i,
    before,
    after,
    unit,
    rounding,
    keep,
    labels,
    places,
    watched,
    found,
    each,
):
    """Update the marginals of voxel i to softmax(sharpness·x), or beyond where ``keep`` > 1.

    Marginals are kept less ``before[l, i]``, and from now on less ``after[l, i]``, where these are
    given. Where the update is ``watched``, the label in row ``places[i]`` of ``labels`` follows, or
    in row i without places, and ``found`` (3, B) takes the largest change of a marginal, the same
    in the foreground, and one more for a label that changed.
    """

    def generate(context, builder, signature, arguments):
        code = _Rows(context, builder, signature.args, arguments)
        row = context.cast(builder, arguments[3], i, types.intp)
        old_averages = code.scalars(before, arguments[4], arguments[3], len(each))
        new_averages = code.scalars(after, arguments[5], arguments[3], len(each))
        place = code.place(10, row)
        one = ir.Constant(FLOAT, 1.0)
        relaxed = builder.fcmp_ordered(">", arguments[8], one)
        seen = context.cast(builder, arguments[11], watched, types.boolean)

        def write(lanes: Lanes, b: ir.Value) -> None:
            shares, zero, norm = code.softmax(lanes, b, arguments[1], len(each))
            new = [lanes.multiply(share, norm) for share in shares]
            held = [lanes.variable(value) for value in (*new, *shares, zero)]
            news, likely, rest = held[: len(each)], held[len(each) : -1], held[-1]
            inverse = builder.fdiv(one, arguments[6])
            old = code.marginals(lanes, 2, row, b, old_averages, inverse, len(each))
            with builder.if_then(relaxed):
                further, left = code.relaxed(lanes, new, old, arguments[8])
                for variables in (news, likely):
                    for variable, value in zip(variables, further):
                        builder.store(value, variable)
                builder.store(left, rest)
            new = [builder.load(variable) for variable in news]
            code.store(lanes, 2, row, b, new, new_averages, arguments[6], arguments[7])
            with builder.if_then(seen):
                shares = [builder.load(variable) for variable in likely]
                best = code.most_probable(lanes, shares, builder.load(rest))
                label = code.at(9, [place, b])
                was = lanes.load_label(label)
                lanes.store_label(best, label)
                code.note(lanes, 12, b, new, old, best, was)

        code.over_problems(0, write)
        return context.get_dummy_value()

    kinds = (x, sharpness, marginals, i, before, after, unit, rounding, keep, labels, places)
    return types.void(*kinds, watched, found, each), generate


class _Rows:
    """Rows of the arrays that an intrinsic takes, in the code that is being written."""

    def __init__(
        self, context: Any, builder: Any, kinds: Sequence[Any], arguments: Sequence[Any]
    ) -> None:
        self._context, self._builder = context, builder
        self._kinds, self._arguments = kinds, arguments
        self._arrays = {
            number: context.make_array(kind)(context, builder, argument)
            for number, (kind, argument) in enumerate(zip(kinds, arguments))
            if isinstance(kind, types.Array)
        }

    def at(self, number: int, indices: Sequence[ir.Value]) -> ir.Value:
        """Return where an element of an argument is."""
        kind, array = self._kinds[number], self._arrays[number]
        return cgutils.get_item_pointer(self._context, self._builder, kind, array, indices)

    def place(self, number: int, row: ir.Value) -> ir.Value:
        """Return places[row] of an argument, the row itself where it is no array."""
        kind = self._kinds[number]
        if not isinstance(kind, types.Array):
            return row
        there = self._builder.load(self.at(number, [row]))
        return self._context.cast(self._builder, there, kind.dtype, types.intp)

    def size(self, number: int, axis: int) -> ir.Value:
        """Return how long an axis of an argument is."""
        return cgutils.unpack_tuple(self._builder, self._arrays[number].shape)[axis]

    def scalars(self, kind: Any, value: Any, i: ir.Value, count: int) -> list[ir.Value]:
        """Return values[0, i] … of an array, nothing where there is none."""
        if not isinstance(kind, types.Array):
            return []
        array = self._context.make_array(kind)(self._context, self._builder, value)
        places = [
            cgutils.get_item_pointer(self._context, self._builder, kind, array, [INDEX(l), i])
            for l in range(count)
        ]
        return [self._builder.load(place) for place in places]

    def over_problems(self, number: int, write: Callable[[Lanes, ir.Value], None]) -> None:
        """Write code for all problems of x (L−1, B): eight at a time, then one by one."""
        self.over(self.size(number, 1), write)

    def over(self, problems: ir.Value, write: Callable[[Lanes, ir.Value], None]) -> None:
        """Write code for so many problems: eight at a time, then one by one."""
        place = cgutils.alloca_once(self._builder, INDEX)
        self._builder.store(INDEX(0), place)
        for size in (WIDE, 1):
            with steps(self._builder, place, problems, size) as b:
                write(Lanes(self._builder, size), b)

    def energies(
        self, number: int, block: int, t: int, l: int, b: ir.Value, problems: Any = None
    ) -> ir.Value:
        """Return where label l and problem b of a voxel in a tile of energies is.

        ``number`` is the argument that holds energies, ``block`` and ``t`` those that say which.
        """
        count = self.size(0, 1) if problems is None else problems
        tile, voxel = (
            self._context.cast(self._builder, self._arguments[k], self._kinds[k], types.intp)
            for k in (block, t)
        )
        lane = self._builder.add(self._builder.mul(voxel, count), b)
        return self.at(number, [tile, INDEX(l), lane])

    def received(
        self, lanes: Lanes, number: int, own: int, b: ir.Value, count: int
    ) -> list[ir.Value]:
        """Return what a voxel receives of every label."""
        problems = self.size(own, 1)
        places = [self._builder.add(self._builder.mul(INDEX(l), problems), b) for l in range(count)]
        return [lanes.load_float(self.at(number, [INDEX(0), place])) for place in places]

    def softmax(
        self, lanes: Lanes, b: ir.Value, sharpness: ir.Value, count: int
    ) -> tuple[list[ir.Value], ir.Value, ir.Value]:
        """Return unnormalised probabilities, label 0's, and what normalises them."""
        sharp = lanes.all(sharpness)
        x = [
            lanes.multiply(lanes.load_float(self.at(0, [INDEX(l), b])), sharp) for l in range(count)
        ]
        highest = lanes.constant(0.0)
        for value in x:
            highest = lanes.larger(value, highest)
        zero = lanes.exp_negative(lanes.negative(highest))
        shares = [lanes.exp_negative(lanes.subtract(value, highest)) for value in x]
        total = zero
        for share in shares:
            total = lanes.add(total, share)
        return shares, zero, lanes.divide(lanes.constant(1.0), total)

    def marginals(
        self,
        lanes: Lanes,
        number: int,
        row: ir.Value,
        b: ir.Value,
        averages: Sequence[ir.Value],
        inverse: ir.Value,
        count: int,
    ) -> list[ir.Value]:
        """Return the marginals that a row holds."""
        kind, out = self._kinds[number].dtype, []
        for l in range(count):
            stored = lanes.load(kind, self.at(number, [row, INDEX(l), b]))
            if averages:
                out.append(lanes.fused(stored, lanes.all(inverse), lanes.all(averages[l])))
            else:
                out.append(lanes.multiply(stored, lanes.all(inverse)))
        return out

    def store(
        self,
        lanes: Lanes,
        number: int,
        row: ir.Value,
        b: ir.Value,
        values: Sequence[ir.Value],
        averages: Sequence[ir.Value],
        unit: ir.Value,
        rounding: ir.Value,
    ) -> None:
        """Write marginals to a row: rounded to the nearest of its units."""
        kind = self._kinds[number].dtype
        for l, value in enumerate(values):
            stored = value
            if averages:
                stored = lanes.subtract(stored, lanes.all(averages[l]))
                if kind != types.float32:
                    stored = lanes.multiply(stored, lanes.all(unit))
            else:
                stored = lanes.fused(stored, lanes.all(unit), lanes.all(rounding))
            lanes.store(kind, stored, self.at(number, [row, INDEX(l), b]))

    def relaxed(
        self, lanes: Lanes, new: Sequence[ir.Value], old: Sequence[ir.Value], keep: ir.Value
    ) -> tuple[list[ir.Value], ir.Value]:
        """Return old + keep·(new − old), as probabilities, and what they leave to label 0."""
        zero, one = lanes.constant(0.0), lanes.constant(1.0)
        further = [
            lanes.larger(lanes.fused(lanes.all(keep), lanes.subtract(n, o), o), zero)
            for n, o in zip(new, old)
        ]
        total = lanes.sum(further)
        norm = lanes.where(">", total, one, lanes.divide(one, total), one)
        left = lanes.where("<", total, one, lanes.subtract(one, total), zero)
        return [lanes.multiply(value, norm) for value in further], left

    def most_probable(self, lanes: Lanes, shares: Sequence[ir.Value], zero: ir.Value) -> ir.Value:
        """Return the most probable label, the lowest of equals."""
        best, highest = lanes.whole(0), zero
        for l, share in enumerate(shares):
            best = lanes.where(">", share, highest, lanes.whole(l + 1), best)
            highest = lanes.larger(share, highest)
        return best

    def note(
        self,
        lanes: Lanes,
        number: int,
        b: ir.Value,
        new: Sequence[ir.Value],
        old: Sequence[ir.Value],
        best: ir.Value,
        was: ir.Value,
    ) -> None:
        """Note how far marginals moved, and which labels changed."""
        builder = self._builder
        changes = [lanes.subtract(n, o) for n, o in zip(new, old)]
        moved = lanes.constant(0.0)
        for change in changes:
            moved = lanes.larger(lanes.size_of(change), moved)
        # What the other labels' changes add up to is label 0's own.
        moved = lanes.larger(lanes.size_of(lanes.sum(changes)), moved)
        zero, one = lanes.constant(0.0), lanes.constant(1.0)
        inside = builder.icmp_signed(">", builder.add(best, was), lanes.whole(0))
        noted = (moved, builder.select(inside, moved, zero))
        for k, value in enumerate(noted):
            place = self.at(number, [INDEX(k), b])
            lanes.store_float(lanes.larger_size(value, lanes.load_float(place)), place)
        place = self.at(number, [INDEX(2), b])
        differs = builder.select(builder.icmp_signed("!=", best, was), one, zero)
        lanes.store_float(lanes.add(lanes.load_float(place), differs), place)


@kernel
def update_rows(
    energies,
    base,
    filters,
    compatibility,
    rows,
    marginals,
    before,
    after,
    labels,
    places,
    unit,
    rounding,
    damping,
    sharpness,
    watched,
    each,
    start,
    stop,
):
    """Update the marginals of some voxels once, in place, from the blurred rows.

    What is returned is what ``row_kernels.update`` returns; ``damping`` is at most 0.
    """
    columns, coefficients, ends, totals, diagonals = filters
    potts, matrices, offsets, _ = compatibility
    problems = labels.shape[1]
    tile = energies.shape[2] // problems
    flat_marginals = marginals.reshape(marginals.shape[0], len(each) * problems)
    x = np.empty((len(each), problems), np.float32)
    message = np.empty((1, len(each) * problems), np.float32)
    found = np.zeros((3, problems), np.float32)
    switched = np.zeros(problems)
    inverse = ONE / unit
    keep = ONE - damping
    for i in range(start, stop):
        start_row(x, energies, i // tile, i % tile, base, i, each)
        first = 0
        for g in range(ends.size):
            own = diagonals[g, i]
            write_received(
                *(message, 0, -own * inverse, flat_marginals, i),
                *(rows, columns, coefficients, first, ends[g]),
            )
            first = ends[g]
            if potts[g]:
                meet_potts(x, message, totals[g, i] - own, each)
            else:
                meet_matrix(x, message, totals[g, i] - own, matrices, offsets, g, each)
        settle_at(
            *(x, sharpness, marginals, i, before, after, unit, rounding, keep),
            *(labels, places, watched, found, each),
        )
        if i % COUNTED == 0 or i == stop - 1:
            switched += found[2]
            found[2] = 0
    return found[0], found[1], switched


@kernel
def begin_rows(
    energies, centre, order, marginals, labels, unit, rounding, sharpness, each, start, stop
):
    """Start some voxels of every problem, as ``row_kernels.begin`` does."""
    problems = labels.shape[1]
    tile = energies.shape[2] // problems
    x = np.empty((len(each), problems), np.float32)
    for i in range(start, stop):
        start_row(x, energies, i // tile, i % tile, (), i, each)
        if centre.size:
            take_off_row(energies, i // tile, i % tile, problems, centre, order[i], each)
        begin_at(x, sharpness, marginals, i, (), unit, rounding, labels, (), each)


@kernel
def begin_held_rows(energies, averages, deltas, places, labels, unit, sharpness, each, start, stop):
    """Start some active voxels, as ``held_kernels.begin_held`` does."""
    problems = deltas.shape[2]
    tile = energies.shape[2] // problems
    x = np.empty((len(each), problems), np.float32)
    for i in range(start, stop):
        start_row(x, energies, i // tile, i % tile, (), i, each)
        begin_at(x, sharpness, deltas, i, averages, unit, ZERO, labels, places, each)
