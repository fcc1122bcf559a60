"""What the project is made of: locked versions, and nothing that runs code found in data."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "lab").rglob("*.py")])
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_WORDS = (
    *("allow_pickle=True", "torch.load(", "weights_only=False"),  # np.load unpickles only if told
    *("shell=True", "os.system", "yaml.load("),
)


def dangers(code: str) -> list[str]:
    """Return what could run code from data, in a file."""
    found = [word for word in FORBIDDEN_WORDS if word in code]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in FORBIDDEN_CALLS else []
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module] if node.module.split(".")[0] in FORBIDDEN_MODULES else []
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_executed_from_data(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "subprocess.run('ls', shell=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(code: str) -> None:
    assert dangers(code) != []


def test_every_requirement_is_locked_at_a_version_that_it_allows() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / ".ci" / "lock.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in pins)
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["test"], *extras["lint"], *extras["docs"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert requirement.specifier.contains(pins[name]), requirement
