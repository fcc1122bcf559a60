"""Small PNG files, as the text that a page holds them in."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _PALETTE = 0, 3


def grey_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a grey picture (rows, columns)."""
    return _png(pixels, _GREY)


def palette_png(pixels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> bytes:
    """Return a picture (rows, columns) of indices into ``colours`` (256, 4), RGB and opacity."""
    return _png(
        pixels,
        _PALETTE,
        _chunk(b"PLTE", np.ascontiguousarray(colours[:, :3]).tobytes()),
        _chunk(b"tRNS", np.ascontiguousarray(colours[:, 3]).tobytes()),
    )


def data_uri(png: bytes) -> str:
    """Return the address by which a page holds the picture in itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _png(pixels: NDArray[np.uint8], colour_type: int, *before_pixels: bytes) -> bytes:
    """Return a file of one byte a pixel."""
    rows, columns = pixels.shape
    header = struct.pack(">2I5B", columns, rows, 8, colour_type, 0, 0, 0)
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each starts with its filter, 0: none
    lines[:, 1:] = pixels
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            *before_pixels,
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), level=9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
