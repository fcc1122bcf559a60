"""Files that appear whole or not at all, and readers that take whatever bytes they find."""

from perturb_mpm.storage.atomic import (
    atomic_open,
    json_ready,
    json_text,
    write_arrays,
    write_json,
)
from perturb_mpm.storage.lock import lock_file
from perturb_mpm.storage.reading import (
    DAMAGE,
    DEFLATE,
    DamagedError,
    array_names,
    arrays_in,
    damage_of,
    json_of,
    largest_file,
    largest_state,
    read_arrays,
    read_json,
    read_toml,
    reason_of,
    require_file,
    require_size,
    toml_of,
)

__all__ = [
    "atomic_open",
    "write_json",
    "json_text",
    "json_ready",
    "write_arrays",
    "read_arrays",
    "lock_file",
    "arrays_in",
    "array_names",
    "read_json",
    "json_of",
    "read_toml",
    "toml_of",
    "DAMAGE",
    "DEFLATE",
    "DamagedError",
    "damage_of",
    "reason_of",
    "require_file",
    "require_size",
    "largest_file",
    "largest_state",
]
