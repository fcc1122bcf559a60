"""``python -m lab synthetic``: the paper's validation on tiny grids, done again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Flag, Json, OutputFolder, Quiet, print_results
from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from lab.synthetic.plan import SyntheticPlan
    from lab.synthetic.run import SyntheticOutcome


def synthetic(
    *,
    output: OutputFolder = Path("reproduce-synthetic"),
    seed: int = 0,
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Repeat the paper's validation on tiny binary grids; write a table, two figures and a page.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    seed
        Names the noise; the problems are always the same.
    quick
        Fewer samples and a coarser map: some seconds instead of some minutes.
    """
    from lab.synthetic import plan as plans
    from lab.synthetic.run import LARGEST_SEED, reproduce_synthetic

    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"--seed must be between 0 and {LARGEST_SEED}, got {seed}")
    plan = plans.QUICK if quick else plans.FULL
    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("measuring")
        outcome = reproduce_synthetic(folder, plan, seed, progress)
    text = "\n".join(f"{claim.verdict}: {claim.statement}" for claim in outcome.claims)
    numbers = _numbers(outcome, plan, seed)
    print_results(outcome.files, text, numbers, quiet=quiet, json=json)


def _numbers(outcome: SyntheticOutcome, plan: SyntheticPlan, seed: int) -> dict[str, object]:
    """Return the verdicts and the main numbers; the metric stands beside each of them."""
    from dataclasses import asdict

    return {
        "mode": plan.mode,
        "seed": seed,
        "draws": outcome.summary.draws,
        "samples": plan.curve_samples[-1],
        "claims": outcome.claims,
        "readings": [{**asdict(each), "holds": each.holds} for each in outcome.readings],
    }
