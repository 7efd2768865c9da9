"""requirements/*.lock, a hash for each file that `make` installs. `python -m tools.lock` writes them with uv, from
pyproject.toml and constraints.txt; `python -m tools.lock --check` says whether they still fit.

torch is not in them: its builds (CPU, CUDA, ROCm) are different files under one version, and come from the index that
PIP_FLAGS names; nor are the libraries that only a build of it asks for. A lock holds what those before it do not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.layout import packages

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PYTHON = "3.11"
"""The oldest that the pinned versions know."""
TORCH = re.compile(r"torch|triton|cuda-.*|nvidia-.*")
"""torch itself, and what comes with one build of it or another."""
BUILD = ("hatchling", "editables", "setuptools")
"""What makes a wheel of the project, and of a package that is there as source only."""
BUNDLE = ("hydra-core", "omegaconf", "pyyaml", "attrs", "cattrs", "rich", "numpy", "pytest", "hypothesis")
"""What npucompose imports beside torch, and what its tests on a host without network need."""
LOCKS: Mapping[str, tuple[str, ...]] = {
    "dev": ("dev",),
    "extras": ("dev", "transformers", "minilm"),
    "bench": ("dev", "transformers", "minilm", "bench"),
    "rivals": ("dev", "transformers", "minilm", "bench", "rivals"),
    "ci": ("dev", "ray", "slurm", "optuna", "tensorboard", "wandb"),
}
"""{lock: extras of the core}; `build` and `bundle` are beside them."""
BEFORE: Mapping[str, tuple[str, ...]] = {
    "extras": ("dev",),
    "bench": ("dev", "extras"),
    "rivals": ("dev", "extras", "bench"),
    "ci": ("dev",),
}
"""What is installed before a lock is."""
HEAD = (
    "# Written by `python -m tools.lock` from pyproject.toml and constraints.txt; torch is installed by its version.\n"
)


@frozen
class Pin:
    """One package of a lock: `attrs==26.1.0 ; python_version < "3.13"`, and the hashes of its files."""

    requirement: Requirement
    text: str
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (version,) = (one.version for one in self.requirement.specifier if one.operator == "==")
        return version


def pins(text: str) -> Iterator[Pin]:
    """What a lock holds; ValueError for a line that is none."""
    logical = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    for line in filter(None, map(str.strip, logical.splitlines())):
        what, *hashes = re.split(r"\s+--hash=", line)
        yield Pin(Requirement(what), what, tuple(hashes))


def written(found: list[Pin]) -> str:
    lines = [" \\\n".join((pin.text, *(f"    --hash={one}" for one in pin.hashes))) for pin in found]
    return HEAD + "\n".join(lines) + "\n"


def lock() -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is needed to write the locks: pip install uv.")
    with tempfile.TemporaryDirectory(prefix="npucompose-lock-") as place:
        folder = Path(place)
        every = _resolved(
            uv, folder / "all", ROOT / "constraints.txt", _declared({e for es in LOCKS.values() for e in es})
        )
        constraints = folder / "pins.txt"
        constraints.write_text("".join(f"{pin.text}\n" for pin in every))
        wanted = {**{name: list(_declared(extras)) for name, extras in LOCKS.items()}, "build": BUILD, "bundle": BUNDLE}
        found = {name: _resolved(uv, folder / name, constraints, what) for name, what in wanted.items()}
    FOLDER.mkdir(exist_ok=True)
    for name, own in found.items():
        before = {pin.text for earlier in BEFORE.get(name, ()) for pin in found[earlier]}
        (FOLDER / f"{name}.lock").write_text(written([pin for pin in own if pin.text not in before]))


def _resolved(uv: str, place: Path, constraints: Path, wanted: Iterable[Requirement | str]) -> list[Pin]:
    source, out = place.with_suffix(".in"), place.with_suffix(".txt")
    source.write_text("".join(f"{one}\n" for one in wanted))
    command = [uv, "pip", "compile", str(source), "--constraint", str(constraints)]
    command += [
        "--generate-hashes",
        "--universal",
        "--python-version",
        PYTHON,
        "--no-header",
        "--no-annotate",
        "--quiet",
    ]
    subprocess.run([*command, "--output-file", str(out)], check=True, cwd=ROOT)
    return [pin for pin in pins(out.read_text()) if not TORCH.fullmatch(pin.name)]


def problems() -> Iterator[str]:
    """A sentence for each thing that does not fit."""
    found: dict[str, list[Pin]] = {}
    for name in (*LOCKS, "build", "bundle"):
        path = FOLDER / f"{name}.lock"
        if not path.is_file():
            yield f"{path.relative_to(ROOT)} is missing."
            return
        text = path.read_text()
        if "://" in text or re.search(r"(?m)^\s*-(?!-hash)", text):
            yield f"{path.relative_to(ROOT)} names an index or an option of pip; a lock holds pins and hashes."
        found[name] = list(pins(text))
        for pin in found[name]:
            if not pin.hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in pin.hashes):
                yield f"{path.relative_to(ROOT)}: {pin.text} has no sha256."
            if TORCH.fullmatch(pin.name):
                yield f"{path.relative_to(ROOT)}: {pin.name} belongs to torch, whose builds differ."
    versions: dict[str, set[str]] = {}
    for pin in (pin for own in found.values() for pin in own):
        versions.setdefault(pin.name, set()).add(pin.version)
    for line in _lines(ROOT / "constraints.txt"):
        wanted = Pin(Requirement(line), line, ())
        if wanted.name in versions and wanted.version not in versions[wanted.name]:
            yield f"constraints.txt wants {line}, the locks hold {', '.join(sorted(versions[wanted.name]))}."
    for name, extras in LOCKS.items():
        there = {pin.name: pin for lock in (*BEFORE.get(name, ()), name) for pin in found[lock]}
        for requirement in (one for one in _declared(extras) if not TORCH.fullmatch(one.name)):
            pin = there.get(canonicalize_name(requirement.name))
            if pin is None:
                yield f"requirements/{name}.lock: pyproject.toml wants {requirement}, and no pin of it is there."
            elif not requirement.specifier.contains(pin.version):
                yield f"requirements/{name}.lock: pyproject.toml wants {requirement}, the lock has {pin.version}."
    for name, wanted_names in (("build", BUILD), ("bundle", BUNDLE)):
        for wanted_name in wanted_names:
            if wanted_name not in {pin.name for pin in found[name]}:
                yield f"requirements/{name}.lock: {wanted_name} is missing."


def _declared(extras: Iterable[str]) -> Iterator[Requirement]:
    """What the core and these of its extras require of others, through the packages that the extras bring."""
    projects = _projects()
    ahead, seen = [("npucompose", extra) for extra in ("", *extras)], set[tuple[str, str]]()
    while ahead:
        if (asked := ahead.pop()) in seen:
            continue
        seen.add(asked)
        project, extra = projects[asked[0]], asked[1]
        for text in project["optional-dependencies"][extra] if extra else project["dependencies"]:
            one = Requirement(text)
            if one.name in projects:
                ahead += [(one.name, inner) for inner in ("", *one.extras)]
            else:
                yield one


def _projects() -> dict[str, Any]:
    """{distribution: the table `project` of its pyproject.toml} of the core and of each package."""
    if sys.version_info < (3, 11):
        raise SystemExit("tools.lock needs Python 3.11.")
    import tomllib

    found = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, *packages(ROOT)))
    return {project["name"]: project for project in found}


def _lines(path: Path) -> Iterator[str]:
    yield from (line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what does not fit, and write nothing")
    if not parser.parse_args().check:
        lock()
    found = list(problems())
    for problem in found:
        print(f"lock: {problem}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
