"""Files that appear whole or not at all."""

from perturb_mpm.storage.atomic import atomic_open, read_arrays, write_arrays, write_json

__all__ = [
    "atomic_open",
    "read_arrays",
    "write_arrays",
    "write_json",
]
