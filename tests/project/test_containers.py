"""Dockerfile and Apptainer recipe: our own few rules, and the script that they start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perturb_mpm.cli import app
from perturb_mpm.engines.cpu import cache_folder

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RECIPE = (ROOT / "apptainer.def").read_text()
START = ROOT / "containers" / "start.sh"


def instructions(text: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) of a Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
        for line in joined.splitlines()
        if line
    ]


def problems(text: str) -> list[str]:
    """Return what is wrong with a Dockerfile."""
    found = instructions(text)
    names = [name for name, _ in found]
    every = dict(found)
    rules = {
        "the base image has no tag, or latest": all(
            re.search(r":(?!latest)\S+", value) for name, value in found if name == "FROM"
        ),
        "the user is root": every.get("USER", "root") not in ("root", "0"),
        "the user comes after the start": "USER" in names
        and names.index("USER") < names.index("ENTRYPOINT"),
        "ADD is used": "ADD" not in names,
        "pip keeps its downloads": not re.search(r"pip install(?!.*--no-cache-dir)", text),
        "the start is no list": every.get("ENTRYPOINT", "").startswith("["),
        "a folder is not absolute": all(v.startswith("/") for n, v in found if n == "WORKDIR"),
        "sudo is used": "sudo " not in text,
        "something is fetched at the start": not re.search(r"curl|wget", text),
    }
    return [words for words, holds in rules.items() if not holds]


def test_the_dockerfile_keeps_the_rules() -> None:
    assert problems(DOCKERFILE) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python:3.13-slim-bookworm", "python"),
        ("python:3.13-slim-bookworm", "python:latest"),
        ("USER perturb", "USER root"),
        ("COPY src", "ADD src"),
        (" --no-cache-dir", ""),
        ("WORKDIR /data", "WORKDIR data"),
    ],
)
def test_a_rule_that_is_broken_is_found(before: str, after: str) -> None:
    assert problems(DOCKERFILE.replace(before, after)) != []


def test_both_recipes_copy_files_that_are_there() -> None:
    copied = [
        name
        for kind, value in instructions(DOCKERFILE)
        if kind == "COPY" and not value.startswith("--from")
        for name in value.split()[:-1]
    ]
    (files,) = re.findall(r"^%files\n(.*?)\n\n", RECIPE, re.MULTILINE | re.DOTALL)
    copied += [line.split()[0] for line in files.splitlines()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name.split('/')[0]}" for name in copied} <= set(ignored)


def test_both_recipes_compile_by_a_command_that_the_parser_takes() -> None:
    for text in (DOCKERFILE, RECIPE):
        (command,) = re.findall(r"perturb-mpm (demo .*?)\s*\\?$", text, re.MULTILINE)
        parsed, *_ = app.parse_args(shlex.split(command), exit_on_error=False, print_error=False)
        assert parsed.__name__ == "demo"
        assert "PERTURB_MPM_CACHE=/opt/perturb-mpm/kernels" in text
        assert "/opt/perturb-mpm/start.sh" in text


def build_commands(recipe: str) -> str:
    """Return what a recipe runs while the image is made, and its own test, as one script."""
    if recipe == "Dockerfile":
        runs = [value for kind, value in instructions(DOCKERFILE) if kind == "RUN"]
        environment = dict(instructions(DOCKERFILE))["ENV"].split()
        return "\n".join([runs[0], *(f"export {each}" for each in environment), *runs[1:]])
    parts = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", RECIPE, re.MULTILINE | re.DOTALL))
    return "\n".join(parts[name] for name in ("post", "environment", "test"))


STANDS_IN = """
useradd() {{ :; }}
python() {{  # -m venv FOLDER: an environment whose pip installs this checkout
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\nfor last; do :; done; test -f "$last/pyproject.toml"\\n' > "$3/bin/pip"
    printf '#!/bin/sh\\nexec {python} -m perturb_mpm "$@"\\n' > "$3/bin/perturb-mpm"
    chmod +x "$3/bin/pip" "$3/bin/perturb-mpm"
}}
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a script of Linux")
@pytest.mark.parametrize("recipe", ["Dockerfile", "apptainer.def"])
def test_every_command_of_a_recipe_runs_in_an_empty_folder(recipe: str, tmp_path: Path) -> None:
    """All but useradd and pip, which want root and a network, are the real ones."""
    shell = shutil.which("sh") or pytest.skip("needs sh")
    source, kernels = tmp_path / "source", tmp_path / "opt" / "perturb-mpm" / "kernels"
    source.mkdir()
    (source / "pyproject.toml").touch()
    compiled = cache_folder()  # compiling takes half a minute
    if compiled is not None and any(compiled.iterdir()):
        shutil.copytree(compiled, kernels / compiled.name)
    commands = re.sub(r"(?<![\w.])/(?=opt|source|tmp)", f"{tmp_path}/", build_commands(recipe))
    script = STANDS_IN.format(python=sys.executable) + commands
    subprocess.run([shell, "-eu", "-c", script], cwd=source, check=True, timeout=1200)
    assert not (tmp_path / "tmp" / "demo").exists()
    found = [path for path in kernels.rglob("*") if path.is_file()]
    assert {".nbc", ".nbi"} <= {path.suffix for path in found}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in found)
    assert not any(path.stat().st_mode & 0o022 for path in found)


@pytest.mark.skipif(os.name == "nt", reason="a script of Linux")
def test_the_script_gives_each_user_a_private_copy_of_the_kernels(tmp_path: Path) -> None:
    kernels, program = tmp_path / "kernels", tmp_path / "bin" / "perturb-mpm"
    (kernels / "kernels-abc").mkdir(parents=True)
    (kernels / "kernels-abc" / "filter.nbi").write_bytes(b"compiled")
    program.parent.mkdir()
    shown = "import os, sys; print(os.environ['PERTURB_MPM_CACHE'], *sys.argv[1:])"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{shown}" "$@"\n')
    program.chmod(0o755)
    shell = shutil.which("sh")
    assert shell is not None
    environment = {
        **os.environ,
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PERTURB_MPM_KERNELS": str(kernels),
        "TMPDIR": str(tmp_path),
    }
    for _ in range(2):  # the second time the folder is there
        done = subprocess.run(
            [shell, str(START), "run", "--image", "a b.nii"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        cache, *arguments = done.stdout.rstrip("\n").split(" ", 3)
        assert arguments == ["run", "--image", "a b.nii"]
        assert Path(cache).stat().st_mode & 0o777 == 0o700
        assert (Path(cache) / "kernels-abc" / "filter.nbi").read_bytes() == b"compiled"
