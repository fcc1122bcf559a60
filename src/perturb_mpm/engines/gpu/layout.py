"""How problems, labels and voxels lie in the device's memory."""

from __future__ import annotations

from dataclasses import dataclass

from perturb_mpm.engines.gpu.tiles import TILE

LANES = 64  # the channels of a block, unless one problem has more
ALIGNMENT = 64  # channels, so that every row starts at a cache line


@dataclass(frozen=True)
class Layout:
    """B problems of L labels on N voxels: channel b·P + l of a row is label l + 1 of problem b."""

    voxels: int  # N
    n_labels: int  # L
    problems: int  # B

    @property
    def padded(self) -> int:
        """P, the number of labels but one, rounded up to a power of two."""
        return 1 << (self.n_labels - 2).bit_length()

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return -(-self.voxels // TILE)

    @property
    def rows(self) -> int:
        """The number of voxels in all tiles, those that only fill up the last included."""
        return self.tiles * TILE

    @property
    def width(self) -> int:
        """The number of channels, B·P."""
        return self.problems * self.padded

    @property
    def stride(self) -> int:
        """The number of channels from one row to the next."""
        return max(1, -(-self.width // ALIGNMENT)) * ALIGNMENT

    @property
    def lanes(self) -> int:
        """The number of channels in a block."""
        return max(LANES, self.padded)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.width // self.lanes)
