"""``perturb-mpm evaluate``: uncertainty against a truth or several raters, one case or a cohort."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.assess import (
    CaseAssessment,
    assess_case,
    check_evaluation_folder,
    read_cohort,
    write_evaluation,
)
from perturb_mpm.cli.console import (
    MOST_WORKERS,
    SHOW,
    Files,
    Show,
    UsageError,
    Words,
    prepare_folder,
    text_table,
    whole_number,
)
from perturb_mpm.cohort import local_workers, map_on_workers
from perturb_mpm.evaluation import REPORTED_SPECIFICITIES, MetricSummary, summarise
from perturb_mpm.files import CaseFiles, label_map_from_text, labels_from_text
from perturb_mpm.report import number

_PRINTED = (  # heading, domain, metric
    ("Dice", "brain", "dice"),
    ("true\nml", "brain", "volume_true_ml"),
    ("found\nml", "brain", "volume_ml"),
    ("ROC\narea", "dilated", "auroc"),
    ("average\nprecision", "dilated", "auprc"),
    ("share of\nerrors", "dilated", "error_prevalence"),
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What is measured, against what, and where the numbers go."""

    prediction: Path | None = None
    """A folder of perturb-mpm run, or a 4-D volume from elsewhere: sampled label maps (whole
    numbers, one map a sample) or marginals (one map a label)."""
    truth: Path | None = None
    """The true label map, on the same grid and with the same label values; for the folder of a
    cohort a folder with CASE.nii.gz, instead of the truths that the cohort was given."""
    rater: Annotated[Files, Parameter(show_default=False)] = ()
    """A rater's label map; several give measures of how alike samples and raters spread."""
    mask: Path | None = None
    """The voxels that count, for a prediction that is a file; a run has its own."""
    table: Path | None = None
    """A cohort instead of one case: CSV with the columns case, prediction, truth, mask, rater_1 …,
    or the folder of perturb-mpm cohort, whose cases have truths."""
    region: Words = None
    """A set of labels by its name and label values, as in core=1,4; each label by default."""
    labels: Words = None
    """The labels of a prediction that is a file, background first: 0:background 1:core 4:tumour,
    values alone, or the name of a scheme such as brats2021."""
    map_values: Annotated[Words, Parameter(name="--map")] = None
    """Label values of truth and raters that stand for others here: 4=3 reads a 4 as 3."""
    estimator: Literal["votes", "conditional", "mean_field"] | None = None
    """Which marginals of a run are measured; those that its labels and maps are made of by
    default."""
    specificity: Annotated[
        tuple[float, ...] | None, Parameter(consume_multiple=True, negative="")
    ] = None
    """At which specificities sensitivity is given; 0.8, 0.9 and 0.95 by default."""
    output: Path = Path("evaluation")
    """The folder to write to; made where it is missing."""
    workers: int = 1
    """How many cases of a cohort are measured at once on this machine; more than 1 needs the extra
    cluster."""
    show: Show = SHOW


_NO_OPTIONS = EvaluateOptions()


def evaluate(*, options: EvaluateOptions = _NO_OPTIONS) -> None:
    """Measure how good an uncertainty is; write metrics.csv, summary.json and evaluation.html."""
    whole_number(options.workers, "--workers", 1, MOST_WORKERS)
    cases = _find_cases(options)
    measure = partial(
        assess_case,
        scheme=None if options.labels is None else labels_from_text(options.labels),
        region_words=options.region or (),
        estimator=options.estimator,
        mapped=label_map_from_text(options.map_values or ()),
        specificities=options.specificity or REPORTED_SPECIFICITIES,
    )
    for value in options.specificity or ():
        if not 0 <= value <= 1:
            raise UsageError(f"--specificity must be between 0 and 1, got {value}")
    check_evaluation_folder(options.output)
    folder = prepare_folder(options.output)
    measured = _measure_cases(measure, cases, options.workers)
    assessments = [each for found in measured for each in found]
    title = cases[0].name if len(cases) == 1 else f"{len(cases)} cases"
    files = write_evaluation(folder, title, assessments)
    summaries = summarise(row for each in assessments for row in each.rows)
    options.show.warn(
        f"{each.truth_outside_mask} voxels of the {each.against} of {each.case} lie "
        "outside the mask of the prediction and do not count"
        for each in assessments
        if each.truth_outside_mask
    )
    options.show.warn(dict.fromkeys(words for each in assessments for words in each.warnings))
    options.show.result(summaries, _table(summaries), files=files)


def _measure_cases(
    measure: Callable[[CaseFiles], list[CaseAssessment]], cases: list[CaseFiles], workers: int
) -> Iterable[list[CaseAssessment]]:
    """Measure the cases in their order, here or on workers of this machine."""
    if workers == 1:
        return map(measure, cases)
    with local_workers(workers) as client:
        return map_on_workers(client, measure, [case.resolve() for case in cases])


def _find_cases(options: EvaluateOptions) -> list[CaseFiles]:
    prediction, truth, raters = options.prediction, options.truth, options.rater
    table, mask = options.table, options.mask
    if (prediction is None) == (table is None):
        raise UsageError("give --prediction for one case or --table for a cohort, one of the two")
    if table is not None:
        if raters or mask is not None or (truth is not None and not table.is_dir()):
            raise UsageError("--truth, --rater and --mask belong into the --table of a cohort")
        return read_cohort(table, truth)
    if prediction is None or not prediction.exists():
        raise UsageError(f"--prediction {prediction}: there is no such file or folder")
    if truth is None and not raters:
        raise UsageError("--truth or --rater must be given: there is nothing to compare with")
    name = prediction.name.removesuffix(".gz").removesuffix(".nii")
    return [CaseFiles(name, mask=mask, truth=truth, raters=raters, prediction=prediction)]


def _table(summaries: Sequence[MetricSummary]) -> Table:
    """Return the means of a few measures, a line a region and truth."""
    means = {(s.region, s.against, s.domain, s.metric): s.mean for s in summaries}
    rows = []
    for region, against in dict.fromkeys((s.region, s.against) for s in summaries):
        values = [means.get((region, against, *column[1:]), math.nan) for column in _PRINTED]
        if not all(map(math.isnan, values)):
            rows.append([region, against, *map(number, values)])
    headings = ["region", "against", *(heading for heading, _, _ in _PRINTED)]
    caption = "within 10 mm of the foreground where not of the whole region"
    return text_table(headings, rows, words=2, caption=caption)
