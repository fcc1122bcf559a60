from __future__ import annotations

import ctypes
import os

from hypothesis import settings

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # No GPU: Triton's interpreter stands in for it. Triton asks when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples on every run, and no deadline: a slow machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")
