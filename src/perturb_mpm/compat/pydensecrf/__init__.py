"""pydensecrf's interface: the modules ``densecrf``, ``utils`` and ``eigen`` with its names.

Change ``import pydensecrf.densecrf as dcrf`` to ``import perturb_mpm.compat.pydensecrf.densecrf as
dcrf``, or call ``install()`` before a program that cannot be edited imports pydensecrf. Results are
those of pydensecrf's own filter, not of the more accurate ones that perturb_mpm has.
"""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["install"]

_MODULES = ("densecrf", "utils", "eigen")


def install() -> None:
    """Let ``import pydensecrf`` give this package, in this process, even where the other is there.

    A module of the other pydensecrf that was imported before stays what it is.

    Examples
    --------
    >>> from perturb_mpm.compat.pydensecrf import install
    >>> install()
    >>> import pydensecrf.densecrf as dcrf  # perturb_mpm's, in this process
    >>> dcrf.DenseCRF2D(30, 20, 3).__module__.split(".")[0]
    'perturb_mpm'
    """
    sys.modules["pydensecrf"] = sys.modules[__name__]
    for name in _MODULES:
        sys.modules[f"pydensecrf.{name}"] = import_module(f"{__name__}.{name}")
