"""The files of the viewer's page, as text."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from importlib.resources import files

_SCRIPTS = ("volume.js", "scene.js", "viewer.js")


def asset(name: str) -> str:
    """Return the text of one file."""
    return files("perturb_mpm.viewer").joinpath("assets", name).read_text(encoding="utf-8")


def niivue() -> str:
    """Return the NiiVue library, a plain script."""
    return asset("niivue.umd.js")


@cache
def niivue_packed() -> str:
    """Return the NiiVue library gzipped, in base64: a third of its size."""
    return base64.b64encode(gzip.compress(niivue().encode(), 9, mtime=0)).decode()


def script(*last: str) -> str:
    """Return the viewer's scripts and ``last`` as one that leaves no names behind."""
    parts = "\n".join(asset(name) for name in (*_SCRIPTS, *last))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'
