"""``perturb-mpm settings``: settings that were learned on public data and come with the program."""

from __future__ import annotations

from typing import Literal

from perturb_mpm.cli.console import Flag, UsageError, print_json, print_plain
from perturb_mpm.run import read_settings, shipped_settings


def settings(
    action: Literal["list", "show"] = "list", name: str | None = None, /, *, json: Flag = False
) -> None:
    """List settings that were learned on public data, or show one of them as a TOML file.

    run, cohort, bids and tune take their names as --settings. A case with other labels, sequences
    or voxels is refused; how well they fit your network, only labelled cases of your own can say.

    Parameters
    ----------
    action
        list, or show.
    name
        Which one to show.
    json
        Print the list as one JSON object.
    """
    shipped = shipped_settings()
    if (name is not None) != (action == "show") or (name is not None and name not in shipped):
        raise UsageError(f"NAME must be one of {', '.join(shipped)}, with show alone, got {name}")
    if name is not None:
        print_plain(shipped[name].read_text("utf-8"))
        return
    found = {each: read_settings(path).basis for each, path in shipped.items()}
    if json:
        print_json({each: vars(basis) for each, basis in found.items()})
        return
    for each, basis in found.items():
        source = [line for line in shipped[each].read_text("utf-8").splitlines() if line[:1] == "#"]
        low, high = basis.learned_voxels
        print_plain(
            each,
            *(f"    {line.removeprefix('# ')}" for line in source),
            f"    labels {' '.join(basis.learned_labels)}; sequences "
            f"{' '.join(basis.learned_sequences)}; voxels {low:g} to {high:g} mm",
            f"    {basis.note}",
            "",
        )
    print_plain(f"use: perturb-mpm run --settings {next(iter(shipped))} …")
