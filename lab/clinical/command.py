"""``python -m lab quality``, ``biomarkers``, ``bias``, ``figures``, ``raters``: in clinics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Flag, Json, OutputFolder, Quiet, print_results, write_figure, write_text
from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from perturb_mpm.run import RunSettings


def quality(
    *,
    data: Path | None = None,
    forest: Flag = False,
    forests: Path | None = None,
    settings: Path | None = None,
    samples: int = 200,
    seed: int = 0,
    spacing: float = 2.0,
    output: OutputFolder = Path("reproduce-quality"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measure how well uncertainty finds errors; write quality.csv, quality.md and curves.png.

    Parameters
    ----------
    data
        A folder of BraTS 2021 patients, each segmented by trees that never saw it; without it
        14 made-up patients are segmented by a random forest trained on others.
    forest
        Segment real patients by a random forest too, instead of boosted trees.
    forests
        The output folder of the experiment segmentation on the same data with the same seed and
        kind of trees, which are taken; else they are grown, and kept in the output folder.
    settings
        A settings file as perturb-mpm tune writes it; the paper's algorithm without it.
    samples
        Samples of each patient and estimator.
    seed
        Names the noise, the forest and the made-up patients.
    spacing
        The voxel size of made-up patients, mm.
    quick
        Three coarse patients and 16 samples: to see that it works.
    """
    chosen = _settings(settings, samples=samples, seed=seed, quick=quick)
    _check_spacing(spacing)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data must be a folder of patients, got {data}")
    if forests is not None and (data is None or not forests.is_dir()):
        raise UsageError(f"--forests must be a folder, and come with --data, got {forests}")
    folder = prepare_folder(output)

    from lab.clinical import cohorts as sources
    from lab.clinical import quality as experiment
    from lab.clinical import quality_page
    from perturb_mpm.files import write_table

    with shown_progress(quiet=quiet) as progress:
        if data is None:
            cohort = sources.preoperative_patients(seed, spacing, quick=quick, progress=progress)
        else:
            cohort = sources.real_cohort(
                data,
                forests or folder,
                seed,
                quick=quick,
                forest=forest,
                progress=progress,
                argument="output" if forests is None else "forests",
            )
        found = experiment.measure_quality(cohort.patients, cohort.regions, chosen, progress)
    comparisons = experiment.compare_estimators(found, cohort.regions)
    about = f"{cohort.about} {_sampling_words(chosen)}"
    text = quality_page.page(found, comparisons, cohort.regions, about)
    rows = [(r.case, r.method, r.region, r.domain, r.metric, r.value) for r in found.rows]
    columns = ("case", "estimator", "region", "domain", "metric", "value")
    write_table(folder / "quality.csv", columns, rows)
    write_text(folder / "quality.md", text)
    write_figure(folder / "curves.png", quality_page.operating_curves(found, list(cohort.regions)))
    files = [folder / name for name in ("quality.csv", "quality.md", "curves.png")]
    numbers = {"rows": found.rows, "tests": comparisons}
    print_results(files, text, numbers, quiet=quiet, json=json)


def biomarkers(
    *,
    settings: Path | None = None,
    samples: int = 200,
    seed: int = 0,
    spacing: float = 2.0,
    output: OutputFolder = Path("reproduce-biomarkers"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare EOR and RTV of 19 made-up patients with four raters; write tables and boxplots.

    Parameters
    ----------
    settings
        A settings file for independent noise; the paper's algorithm without it. Correlated noise
        is learned on other scans, as perturb-mpm tune does.
    samples
        Samples of each scan and perturbation.
    seed
        Names the noise, the forest and the patients.
    spacing
        The voxel size, mm.
    quick
        Three coarse patients and 16 samples: to see that it works.
    """
    chosen = _settings(settings, samples=samples, seed=seed, quick=quick)
    _check_spacing(spacing)
    folder = prepare_folder(output)

    from lab.clinical import biomarkers as experiment
    from lab.clinical import biomarkers_page
    from lab.clinical import cohorts as sources
    from perturb_mpm.files import write_table

    with shown_progress(quiet=quiet) as progress:
        cohort = sources.operated_cohort(seed, spacing, quick=quick, progress=progress)
        perturbations = sources.perturbations(cohort, chosen, quick=quick, progress=progress)
        scanners = {
            words: experiment.settings_scanner(each, cohort.region, words)
            for words, each in perturbations.items()
        }
        found = experiment.measure_biomarkers(cohort.patients, cohort.region, scanners, progress)
    tests, covered = experiment.error_tests(found), experiment.interval_coverage(found)
    notes = [settings.basis.note for settings in perturbations.values()]
    learned = " ".join(note for note in notes if note)
    about = f"{cohort.about} {_sampling_words(chosen)}\n\n{learned}"
    text = biomarkers_page.page(found, tests, covered, about)
    columns = (
        "patient", "perturbation", "quantity", "method", "reference", "value", "reference_value",
    )  # fmt: skip
    rows = [tuple(getattr(each, name) for name in columns) for each in found.estimates]
    write_table(folder / "biomarkers.csv", columns, rows)
    write_text(folder / "biomarkers.md", text)
    files = [folder / "biomarkers.csv", folder / "biomarkers.md"]
    for number, perturbation in enumerate(perturbations):
        for quantity, short in (("rtv_ml", "rtv"), ("eor_frac", "eor")):
            files.append(folder / f"{short}-{('paper', 'together')[number]}.png")
            write_figure(files[-1], biomarkers_page.boxplots(found, perturbation, quantity))
    numbers = {"estimates": found.estimates, "tests": tests, "coverage": covered}
    print_results(files, text, numbers, quiet=quiet, json=json)


def bias(
    *,
    data: Path | None = None,
    seed: int = 0,
    output: OutputFolder = Path("reproduce-bias"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Say for which segmenters dropping uncertain voxels helps; write tables, a page and figures.

    Parameters
    ----------
    data
        The folder brain_tumor_progression_crop: real patients at two dates, measured too.
    seed
        Names the noise, the patients and the raters.
    quick
        Three coarse patients and 8 samples: to see that it works.
    """
    folder = prepare_folder(output)

    from lab.clinical import bias as experiment
    from lab.clinical import bias_page, progression
    from lab.clinical.biomarkers import error_tests, measure_biomarkers
    from perturb_mpm.files import write_table

    plan = experiment.QUICK if quick else experiment.FULL
    with shown_progress(quiet=quiet) as progress:
        progress.stage("learning a CRF by overlap")
        learned = experiment.learn_by_overlap(plan, seed)
        compared = experiment.segmenters(plan, learned)
        repeated = experiment.repeat_with_other_noise(plan)
        found = measure_biomarkers(
            experiment.made_up_patients(plan, seed),
            experiment.REGION,
            experiment.scanners([*compared, *repeated], plan.samples, seed),
            progress,
        )
        real = None
        if data is not None:
            of_real = [experiment.Segmenter(b, region=progression.REGION) for b in plan.biases_nats]
            measured = measure_biomarkers(
                progression.progression_patients(data, seed, 4 if quick else None),
                progression.REGION,
                experiment.scanners(of_real, plan.samples, seed),
                progress,
            )
            real = bias_page.BiasFindings(
                plan, learned, of_real, measured, error_tests(measured), "thousand voxels"
            )
    tests = error_tests(found)
    ends = (".csv", ".png", "-eor.png", "-learning.png", ".md")
    files = [folder / f"reproduce-bias{end}" for end in ends]
    columns = (
        "patient", "perturbation", "quantity", "method", "reference", "value", "reference_value",
    )  # fmt: skip
    rows = [tuple(getattr(each, name) for name in columns) for each in found.estimates]
    write_table(files[0], columns, rows)
    write_figure(files[1], bias_page.boxplots(found, compared))
    write_figure(files[2], bias_page.boxplots(found, compared, "eor_frac"))
    write_figure(files[3], bias_page.learning_curve(learned))
    made_up = bias_page.BiasFindings(plan, learned, compared, found, tests, repeated=repeated)
    text = bias_page.page(made_up, real)
    write_text(files[4], text)
    numbers = {"estimates": found.estimates, "tests": tests}
    if real is not None:
        numbers |= {"real_estimates": real.results.estimates, "real_tests": real.tests}
    print_results(files, text, numbers, quiet=quiet, json=json)


def figures(
    *,
    seed: int = 0,
    output: OutputFolder = Path("reproduce-figures"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Draw made-up patients as the paper's figures 4, 7 and 8 show its own; write three pictures.

    Parameters
    ----------
    seed
        Names the noise, the patients and the raters.
    quick
        Coarse patients and eight samples: to see that it works.
    """
    folder = prepare_folder(output)

    from lab.clinical import illustrations

    plan = illustrations.QUICK if quick else illustrations.FULL
    names = ("samples", "raters", "false-positives")
    files = [folder / f"reproduce-clinical-{name}.png" for name in names]
    with shown_progress(quiet=quiet) as progress:
        progress.stage("sampling a patient before surgery")
        patient, found = illustrations.sample_growth(plan, seed)
        write_figure(files[0], illustrations.draw_growth(patient, found))
        progress.stage("sampling two patients after surgery")
        low, high = (
            illustrations.sample_scan(patient, plan.snapshots[-1], seed)
            for patient in illustrations.choose_patients(plan, seed)
        )
        write_figure(files[1], illustrations.draw_raters(low))
        write_figure(files[2], illustrations.draw_false_positives(high))
    share = illustrations.uncertain_share(high)
    false_ml = high.patient.volume_ml(high.false_positive.astype(int), (1,))
    growth = illustrations.growth_rows(patient, found)
    border = illustrations.border_share(patient, found)
    text = (
        f"{illustrations.growth_table(growth)}\n\n"
        f"{100 * border:.0f} % of the brain lies within a voxel of a border between labels; "
        f"after a complete resection {false_ml:.2f} ml are segmented as enhancing tumour, "
        f"{100 * share:.0f} % of them uncertain (entropy of enhancing tumour above 0)"
    )
    numbers = {
        "growth": [row._asdict() for row in growth],
        "border_share": border,
        "false_positive_ml": false_ml,
        "uncertain_share": share,
    }
    print_results(files, text, numbers, quiet=quiet, json=json)


def raters(
    *,
    data: Path,
    samples: int = 100,
    seed: int = 0,
    output: OutputFolder = Path("reproduce-raters"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Hold real drawings against each other, and samples against them; write tables and a page.

    Where the nodules of LIDC are there, samples of some readers' outlines are compared with the
    other readers: nodules.csv and reproduce-raters.md.

    Parameters
    ----------
    data
        A folder with lidc_multirater_masks, tcga_fg6692_5algorithms or both.
    samples
        Samples of each nodule.
    seed
        Names the noise.
    quick
        Three nodules and eight samples: to see that it works.
    """
    from lab.clinical import nodules
    from lab.clinical.raters import LIDC, RaterRow, compare_raters, table
    from perturb_mpm.files import write_table

    if samples < 2:
        raise UsageError(f"--samples must be at least 2, got {samples}")
    samples = 8 if quick else samples
    rows = compare_raters(data)
    folder = prepare_folder(output)
    columns = tuple(RaterRow.__dataclass_fields__)
    write_table(folder / "raters.csv", columns, [tuple(asdict(row).values()) for row in rows])
    text = table(rows)
    write_text(folder / "raters.md", text)
    files = [folder / "raters.csv", folder / "raters.md"]
    numbers: dict[str, object] = {"rows": rows}
    if (data / LIDC).is_dir():
        drawn = nodules.read_nodules(data / LIDC)[: 3 if quick else None]
        with shown_progress(quiet=quiet) as progress:
            progress.stage("sampling nodules")
            sampled = nodules.measure_nodules(drawn, samples, seed, progress)
        files += [folder / "nodules.csv", folder / "reproduce-raters.md"]
        columns = tuple(nodules.ReaderRow.__dataclass_fields__)
        named = [{**vars(row), "readers": "+".join(map(str, row.readers))} for row in sampled]
        write_table(files[-2], columns, [tuple(row.values()) for row in named])
        text += "\n" + nodules.page(drawn, sampled, samples)
        write_text(files[-1], nodules.page(drawn, sampled, samples))
        numbers["nodules"] = sampled
    print_results(files, text, numbers, quiet=quiet, json=json)


def _settings(path: Path | None, *, samples: int, seed: int, quick: bool) -> RunSettings:
    from perturb_mpm.run import RunSettings, read_settings

    try:
        found = RunSettings.of_paper() if path is None else read_settings(path)
        return found.changed(samples=16 if quick else samples, seed=seed)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_spacing(spacing: float) -> None:
    if not 1.0 <= spacing <= 8.0:
        raise UsageError(f"--spacing must be between 1 and 8 mm, got {spacing:g}")


def _sampling_words(settings: RunSettings) -> str:
    drawn = settings.sampling
    return f"{drawn.samples} samples of {drawn.iterations} iterations, seed {drawn.seed}."
