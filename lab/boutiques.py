"""Write boutiques.json, what Boutiques knows of ``perturb-mpm bids``: ``python -m lab.boutiques``.

It is made from the command's own parser. Of the settings it has those that people change from run
to run; all others are in the file that ``--settings`` names.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from perturb_mpm.cli import app
from perturb_mpm.version import version

if TYPE_CHECKING:
    from cyclopts.argument import Argument

PATH = Path(__file__).parents[1] / "boutiques.json"
COMMAND = "perturb-mpm bids"
_SETTINGS = (
    *("--settings", "--paper", "--region", "--samples", "--seed"),
    *("--engine", "--threads", "--memory"),
)
_GROUPS = ("Inputs", "Output")
_TYPES = {int: "Number", float: "Number", str: "String", Path: "File", bool: "Flag"}


def describe_command() -> dict[str, Any]:
    """Return the descriptor as Boutiques' schema 0.5 has it."""
    listed = [_describe_input(argument) for argument in _read_arguments()]
    keys = " ".join(each["value-key"] for each in listed)
    return {
        "name": "perturb-mpm",
        "description": "Samples segmentations from a dense CRF and says how uncertain they are.",
        "tool-version": version(),
        "schema-version": "0.5",
        "command-line": f"{COMMAND} {keys}",
        "inputs": listed,
        "output-files": [
            {
                "id": "output_files",
                "name": "The derivative dataset",
                "path-template": "[OUTPUT_DIR]",
                "optional": False,
            }
        ],
        "error-codes": [
            {"code": 1, "description": "Another failure."},
            {"code": 2, "description": "Bad input: nothing was run."},
            {"code": 3, "description": "Some cases failed, the others are done."},
            {"code": 130, "description": "Interrupted; the same command goes on."},
        ],
        "tags": {"domain": ["neuroinformatics"], "app-type": ["bids"]},
    }


def _read_arguments() -> Iterator[Argument]:
    for argument in app["bids"].assemble_argument_collection(parse_docstring=True):
        groups: Any = argument.parameter.group
        name = argument.names[0]
        if name != "*" and (groups[0].name in _GROUPS or name in _SETTINGS):
            yield argument


def _describe_input(argument: Argument) -> dict[str, Any]:
    """Return one input; the lists of types and choices are those of the annotation."""
    name = argument.names[0]
    plain = name.removeprefix("--").replace("-", "_").lower()
    hint, is_list = _plain_type(argument.hint)
    found: dict[str, Any] = {
        "id": plain,
        "name": plain.replace("_", " "),
        "description": " ".join((argument.parameter.help or "").split()),
        "type": _TYPES.get(hint, "String"),
        "optional": not argument.required,
        "value-key": f"[{plain.upper()}]",
    }
    if name.startswith("--"):
        found["command-line-flag"] = name
    if get_origin(hint) is Literal:
        found["value-choices"] = list(get_args(hint))
    if hint is int:
        found["integer"] = True
    if is_list:
        found["list"] = True
    if plain == "output_dir":
        found["type"] = "String"  # it need not be there
    return found


def _plain_type(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401 - an annotation
    """Return what an annotation holds without None, and whether it holds several."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    return hint, False


def descriptor_text() -> str:
    """Return the file's content."""
    return json.dumps(describe_command(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(descriptor_text(), encoding="utf-8")
