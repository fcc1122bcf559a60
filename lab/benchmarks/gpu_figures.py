"""The README's GPU figures, from the JSON of a full run on a GPU machine."""

from __future__ import annotations

from typing import Any

HEADER = (
    "| problem | filter | seconds | of these building | peak GB | voxels whose modal label differs "
    "from `exact`'s, %: brain, tumour | largest bias of a label's volume, % |"
)


def rendered(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    machine, plan = results["machine"], results["plan"]
    about = (
        f"{plan['samples']} samples of {plan['iterations']} iterations, five labels, a spatial and "
        "a 7-D bilateral kernel, from the CRF's arrays on the host to its votes on the host, after "
        f"compilation; one {machine['gpu']}, {machine['date'][:10]}. "
        "`python -m lab.benchmarks.gpu` does it "
        "again ([benchmarks](lab/benchmarks/README.md))."
    )
    lines = [about, "", HEADER, "|---|---|--:|--:|--:|--:|--:|"]
    for row in results["rows"]:
        lines += _rows(row)
    lines += ["", *(_sentence(row) for row in results["rows"]), "", results["peers"]]
    return "\n".join(lines)


def _rows(row: dict[str, Any]) -> list[str]:
    name = f"{row['problem']}, {row['voxels'] / 1e6:.2f} M voxels, {row['setting']}"
    lines = []
    for accuracy in ("plain", "calibrated", "accurate"):
        found, against = row[accuracy], row["against_exact"][accuracy]
        bias = max(against["volume_bias"], key=abs)
        cells = [
            name,
            accuracy,
            f"{found['job_s']:.2f}",
            f"{found['parts_s']['prepare']:.2f}",
            f"{found['peak_gb']:.0f}",
            f"{100 * against['share']:.3f}, {100 * against['share_in_tumour']:.2f}",
            f"{100 * bias:+.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    exact, seeds = row["exact"], row["two_seeds"]
    useful = f"{exact['useful_tflop_per_s']:.0f} TFLOP/s"
    lines.append(f"| {name} | exact, {useful} | {exact['job_s']:.0f} | | | – | – |")
    differ = f"{100 * seeds['share']:.3f}, {100 * seeds['share_in_tumour']:.2f}"
    lines.append(f"| {name} | `calibrated`, two noise seeds | | | | {differ} | |")
    return lines


def _sentence(row: dict[str, Any]) -> str:
    cpu, small = row["plain_equals_cpu"], row["small_memory"]
    bits = "the same bits" if all([*row["bits"].values(), small["same_bits"]]) else "OTHER BITS"
    return (
        f"- {row['problem']}, {row['setting']}: `sample` as a whole, from the CRF to the "
        f"posterior, takes {row['sample_s']:.2f} s, {row['sample_fields_s']:.2f} s with two smooth "
        f"fields. In 8 GB of memory the votes take {small['job_s']:.2f} s; in any chunks and on "
        f"every run they are {bits}. `plain` gives the CPU's modal labels in "
        f"{100 * cpu['share']:.4f} % of the voxels. The error of `exact` on rows summed in float64 "
        f"is {row['filter_error']['exact_maximum']:.1e} at most."
    )
