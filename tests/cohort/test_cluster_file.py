"""A file that names a cluster: Dask's own classes and plain values, and no other code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.small_case import call
from helpers.small_cohort import outputs, write_small_cohort
from perturb_mpm.cohort import ClusterError, read_cluster_file, start_cluster

pytest.importorskip("distributed", reason="the extra cluster is not installed")

LOCAL = """
class = "dask.distributed.LocalCluster"

[arguments]
n_workers = 2
threads_per_worker = 1
host = "127.0.0.1"
dashboard_address = "127.0.0.1:0"
"""


@pytest.mark.slow
def test_a_cohort_on_the_cluster_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(LOCAL)
    options = ["cohort", *write_small_cohort(tmp_path), "--samples", "12", "--iterations", "3"]
    options += ["--quiet", "--threads", "1"]
    serial, out = tmp_path / "serial", tmp_path / "out"
    assert call(*options, "--output", str(serial)) == 0
    assert call(*options, "--output", str(out), "--cluster", str(file), "--split", "2") == 0
    assert outputs(out) == outputs(serial)
    assert call(*options, "--output", str(out), "--cluster", str(file), "--workers", "2") == 2


SBATCH = """#!/bin/sh
for script; do :; done
cp "$script" "$HERE/job-$$.sh"
setsid sh "$HERE/job-$$.sh" >/dev/null 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
for job; do kill -- "-$job"; done
"""


@pytest.mark.slow
def test_slurm_of_the_documents_with_a_stand_in_for_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are started on this machine at once; the rest is dask-jobqueue's own."""
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(tmp_path))
    file = tmp_path / "slurm.toml"
    small = {"workers = 100": "workers = 2", "cores = 8": "cores = 1", "16 GB": "1 GB"}
    text = example()
    for before, after in small.items():
        text = text.replace(before, after)
    file.write_text(text)
    options = ["cohort", *write_small_cohort(tmp_path), "--samples", "12", "--iterations", "3"]
    options += ["--quiet", "--threads", "1", "--engine", "reference"]
    serial, out = tmp_path / "serial", tmp_path / "out"
    assert call(*options, "--output", str(serial)) == 0
    assert call(*options, "--output", str(out), "--cluster", str(file)) == 0
    assert outputs(out) == outputs(serial)
    assert "SLURMCluster" in (out / "cohort.csv").read_text()


def example() -> str:
    """Return the file that the documents show."""
    page = (Path(__file__).parents[2] / "docs" / "cohort.md").read_text()
    return page.split("```text\n")[1].split("```")[0]


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "cluster.toml", tmp_path / "cluster.yaml"
    toml.write_text(
        'class = "dask_jobqueue.SLURMCluster"\nworkers = 100\n'
        '[arguments]\ncores = 8\nmemory = "16 GB"\njob_extra_directives = ["--exclusive"]\n'
    )
    yaml.write_text(
        "class: dask_jobqueue.SLURMCluster\nworkers: 100\narguments:\n  cores: 8\n"
        "  memory: 16 GB\n  job_extra_directives: [--exclusive]\n"
    )
    one, other = read_cluster_file(toml), read_cluster_file(yaml)
    assert one.arguments == other.arguments
    assert (one.class_name, one.workers) == (other.class_name, other.workers)
    assert one.workers == 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('class = "os.system"', "must name a class of dask, distributed, dask_jobqueue, dask_cuda"),
        ('class = "dask"', "must name a class of dask"),
        ('class = "daskevil.Cluster"', "must name a class of dask"),
        ("class = \"distributed.__import__('os')\"", "must name a class of dask"),
        ("workers = 3", "must name a class of dask"),
        ('class = "distributed.LocalCluster"\nworkers = 0', "workers in .* at least 1"),
        (
            'class = "distributed.LocalCluster"\nscript = "x"',
            "and arguments, got scr",
        ),
        ('class = "distributed.LocalCluster"\narguments = 3', "arguments that are numbers"),
        ('class = "distributed.LocalCluster"\narguments = {a = 2024-01-01}', "that are numbers"),
        ("class = [", "must be a TOML or YAML file: .*cluster.toml cannot be read"),
    ],
)
def test_anything_else_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(ClusterError, match=words):
        read_cluster_file(file)


@pytest.mark.parametrize(
    "text",
    [
        "class: !!python/name:os.system\n",
        "class: !!python/object/apply:os.system [ls]\n",
        "class: distributed.LocalCluster\narguments: &a {b: *a}\n",
        "class: distributed.LocalCluster\narguments: {c: &a [1, 1], d: [*a, *a]}\n",
        "- class\n",
        "class: " + "[" * 5000 + "\n",
        "# " + "x" * 70_000 + "\n",
    ],
)
def test_yaml_runs_nothing_and_grows_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ClusterError, match="`cluster` must"):
        read_cluster_file(file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("distributed.Client", "must name one of Dask's clusters, got distributed.Client"),
        ("dask.config.set", "must name one of Dask's clusters"),
        ("distributed.utils.os", "must name one of Dask's clusters"),
        ("distributed.deploy.local.LocalCluster2", "must name a class that is installed"),
        ("dask.no_such.Cluster", "must name a class that is installed"),
        ("distributed.LocalCluster", "must start distributed.LocalCluster as .* got TypeError"),
    ],
)
def test_a_class_that_is_no_cluster_is_refused(name: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'class = "{name}"\n[arguments]\nno_such_argument = [1]\nprocesses = false\n'
        'dashboard_address = ":0"\n'  # another program may have the usual port
    )
    with pytest.raises(ClusterError, match=words), start_cluster(read_cluster_file(file)):
        pass


def test_the_example_of_the_documents_is_such_a_file(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(example())
    found = read_cluster_file(file)
    assert (found.class_name, found.workers) == ("dask_jobqueue.SLURMCluster", 100)
    assert found.arguments["cores"] == 8


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="`cluster` must be a TOML or YAML file: No such file"):
        read_cluster_file(tmp_path / "cluster.toml")
