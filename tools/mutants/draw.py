"""Which mutants a seed draws: from all eligible lines of each package, a line at a time.

A line is drawn by a digest of the seed and of what stands on it, not by its number: a change elsewhere in the package
moves no other mutant into or out of the sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tools.layout import packages
from tools.mutants import cpp, python
from tools.mutants.mutation import Mutation

SOURCES = {
    "src/npucompose": ("*.py", "*.cpp", "*.h"), "src/hydra_plugins": ("*.py",), "airflow_free": ("*.py",),
    **{f"packages/{package.name}/src": ("*.py", "*.cpp", "*.h") for package in packages()},
}  # fmt: skip
NATIVE = "packages/replay/src/npucompose_replay/executor/src"
PRODUCT = "src/npucompose"
PACKAGES: dict[str, tuple[str, ...]] = {
    "airflow_free": ("airflow_free",),
    "replay, C++": (NATIVE,),
    **{f"packages/{package.name}": (f"packages/{package.name}",) for package in packages()},
    "experiment": (f"{PRODUCT}/experiment", "src/hydra_plugins"),
    "compose": tuple(f"{PRODUCT}/{name}" for name in ("compose", "input_safety.py", "registry.py")),
    "serving": (f"{PRODUCT}/serving",),
    "table, vendor": (f"{PRODUCT}/table", f"{PRODUCT}/vendor"),
    "schema, results": (f"{PRODUCT}/schema", f"{PRODUCT}/results"),
    **{name: (f"{PRODUCT}/{name}",) for name in (
        "npu/capture", "npu/static_graph", "npu/torchair", "graphs", "measure", "models", "ops", "passes", "recipe",
        "report", "streams", "targets/npu_offline", "targets",
    )},
    "the front": (PRODUCT,),
}  # fmt: skip
"""The first that fits is a file's package, so longer names stand before what they are part of."""

AREAS: dict[str, tuple[str, ...]] = {
    "replay": ("packages/replay", "replay, C++"),
    "targets": ("targets", "targets/npu_offline", "npu/torchair", "serving", "packages/vllm", "packages/simulator"),
    "streams": ("streams", "passes", "graphs"),
    "sinking and capture": ("npu/static_graph", "npu/capture"),
    "compose": ("compose", "table, vendor", "models", "ops", "the front"),
    "recipe": ("recipe", "packages/extras"),
    "report and results": ("report", "schema, results", "measure", "packages/devtools"),
    "experiment and airflow_free": ("experiment", "airflow_free"),
}
"""Each package once, in the areas by which a review counts."""

OF_AN_ENGINE = tuple(f"packages/vllm/src/npucompose_vllm/{name}.py" for name in (
    "attention", "compiler", "passes", "platform", "recordings", "worker",
))  # fmt: skip
"""Not drawn: they import vLLM, so the tests that run them are not those of `make test` but of `make test-serving`."""


def package_of(path: str) -> str:
    return next(name for name, places in PACKAGES.items() if any(path == p or path.startswith(f"{p}/") for p in places))


def files(root: Path) -> Iterator[str]:
    """The product's sources, as paths below `root`."""
    for folder, patterns in SOURCES.items():
        found = {path for pattern in patterns for path in (root / folder).rglob(pattern)}
        yield from sorted({path.relative_to(root).as_posix() for path in found}.difference(OF_AN_ENGINE))


def mutations(root: Path, path: str) -> list[Mutation]:
    language = python if path.endswith(".py") else cpp
    return language.mutations(path, (root / path).read_text(encoding="utf-8"))


def eligible(root: Path) -> dict[str, list[list[Mutation]]]:
    """For each package its eligible lines, each with its mutations."""
    lines: dict[str, dict[tuple[str, int], list[Mutation]]] = {name: {} for name in PACKAGES}
    for path in files(root):
        for mutation in mutations(root, path):
            lines[package_of(path)].setdefault((path, mutation.line), []).append(mutation)
    return {name: list(found.values()) for name, found in lines.items()}


def drawn(lines: list[list[Mutation]], seed: int) -> Iterator[Mutation]:
    """One mutation of each line, the lines in the seed's order: the sample is the first so many that compile."""
    for line in sorted(lines, key=lambda line: _number(seed, "line", line[0].key)):
        kinds = sorted({mutation.kind for mutation in line})
        kind = kinds[_number(seed, "kind", line[0].key) % len(kinds)]
        yield min((m for m in line if m.kind == kind), key=lambda m: _number(seed, "which", m.key))


def _number(seed: int, *words: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join((str(seed), *words)).encode()).digest()[:8], "big")
