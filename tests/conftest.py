from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no deadline: a slow machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")
