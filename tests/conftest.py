from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # No GPU: Triton's interpreter stands in for it. Triton asks when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# One worker a core: threads of linear algebra beside the workers would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples on every run, and no deadline: a slow machine is not a failure. `make torture`
# draws many more, others each time.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("night", deadline=None, max_examples=1000)
settings.load_profile("repeatable")

# A shell that starts a command in the background lets it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


def leave_in_memory(_fd: object) -> None:
    """Do not wait for the disk, which takes milliseconds some ten thousand times.

    No test cuts the power; those that ask when a disk is waited for put something else here.
    """


os.fsync = leave_in_memory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests, then with large ones.

    So no worker is left alone with a long one at the end.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what imports have made, which stays to the end.

    A full collection would otherwise visit half a million objects, in one of some dozen tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@pytest.fixture(scope="module", autouse=True)
def no_browser_is_left() -> Iterator[None]:
    """Close the browsers that the tests of a file shared."""
    yield
    if "helpers.browser" in sys.modules:
        sys.modules["helpers.browser"].close_browsers()
