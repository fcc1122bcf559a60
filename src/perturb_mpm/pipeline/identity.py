"""What makes a run the same run: its inputs, its parameters, the version, the model they give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from perturb_mpm.io.case import Case
from perturb_mpm.pipeline.settings import RunSettings
from perturb_mpm.version import version

FORMAT = "perturb-mpm run"
FORMAT_VERSION = 1

_NOTHING = object()
_MOST_NAMED = 3  # an error is one line


def identity_of(
    case: Case, settings: RunSettings, reading: Mapping[str, object], problem: str
) -> dict[str, Any]:
    """Return what must agree before a run goes on; ``problem`` is the digest of its CRF."""
    identity = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": version(),
        "inputs": case.hashes,
        "reading": dict(reading),
        "mask": case.mask_origin,
        "labels": {"values": case.labels.values, "names": case.labels.names},
        "parameters": settings.that_change_maps(),
        "problem": problem,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity, allow_nan=False))
    return plain


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what two runs differ in, nothing where they are the same."""
    keys = [key for key in now if key != "problem"]
    found = [words for key in keys for words in _compare(key, before.get(key, _NOTHING), now[key])]
    if not found and before.get("problem") != now["problem"]:
        found = ["the energies and kernels made of the inputs"]
    left = len(found) - _MOST_NAMED
    return "; ".join(found[:_MOST_NAMED] + ([f"and {left} more"] if left > 0 else []))


def _compare(name: str, before: object, now: object) -> Iterator[str]:
    """Name each entry that differs, at any depth."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _compare(f"{name}.{key}", before.get(key, _NOTHING), now.get(key, _NOTHING))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now)):
            yield from _compare(f"{name}[{place}]", one, other)
    elif before is _NOTHING or now is _NOTHING or before != now:
        yield f"{name} was {_shown(before)}, is {_shown(now)}"


def _shown(value: object) -> str:
    text = "absent" if value is _NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
