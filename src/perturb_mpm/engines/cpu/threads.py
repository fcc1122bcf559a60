"""Run a kernel over pieces of a range on several threads; the result never depends on how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.compute import available_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

# Several pieces a thread even out what a busy core delays.
PIECES_PER_THREAD = 4
SMALLEST_PIECE = 16
SMALLEST_SORT = 1 << 16
# A matrix of this many entries is worked on in pieces, each with its own numbers for all columns.
WORTH_PIECES = 1 << 18
MOST_PIECES = 4


class Threads:
    """A pool that calls ``kernel(*arguments, start, stop)`` for pieces of ``range(count)``.

    A kernel writes only to the elements of its own piece, in an order that does not depend on
    where pieces begin, so that neither the number of threads nor their pace changes a bit.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or available_cores()
        # The thread that asks works too.
        self._pool = ThreadPoolExecutor(self.count - 1) if self.count > 1 else None

    def run(self, kernel: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
        """Return what the kernel returned for each piece, in the order of the range."""
        pieces = min(self.count * PIECES_PER_THREAD, -(-count // SMALLEST_PIECE))
        if self._pool is None or pieces <= 1:
            return [kernel(*arguments, 0, count)]
        edges = [count * k // pieces for k in range(pieces + 1)]
        return self.each(lambda k: kernel(*arguments, edges[k], edges[k + 1]), range(pieces))

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return what ``work`` gives for each item, in their order; whoever is free takes one.

        It must not ask these threads for anything itself: it might wait for its own thread.
        """
        if self._pool is None:
            return [work(item) for item in items]
        results: list[Any] = [None] * len(items)
        left = iter(range(len(items)))

        def some() -> None:
            for k in left:
                results[k] = work(items[k])

        helpers = [self._pool.submit(some) for _ in range(min(self.count, len(items)) - 1)]
        some()
        for helper in helpers:
            if not helper.cancel():  # one that has not begun finds nothing left
                helper.result()
        return results

    def split(self, rows: int, entries: int, block: int = 1) -> list[tuple[int, int]]:
        """Return the ends of a matrix's pieces, of whole blocks: one where it has few entries."""
        blocks = -(-rows // block)
        pieces = max(1, min(self.count, MOST_PIECES, blocks)) if entries >= WORTH_PIECES else 1
        return list(pairwise(min(blocks * k // pieces * block, rows) for k in range(pieces + 1)))

    def sort(self, values: NDArray[np.int64]) -> None:
        """Let values rise, in place: pieces are sorted side by side, then merged."""
        if self._pool is None or values.size < SMALLEST_SORT:
            values.sort()
            return
        self.each(np.ndarray.sort, np.array_split(values, self.count))
        values.sort(kind="stable")  # which looks for runs and merges them
