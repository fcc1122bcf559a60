"""Files that appear whole or not at all."""

from perturb_mpm.storage.atomic import (
    atomic_open,
    json_ready,
    json_text,
    read_arrays,
    write_arrays,
    write_json,
)

__all__ = ["atomic_open", "write_json", "json_text", "json_ready", "write_arrays", "read_arrays"]
