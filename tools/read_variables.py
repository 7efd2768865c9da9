"""Read the environment variables of torch_npu, TorchAir and CANN's runtime into src/npucompose/vendor/variables.json.

    python -m tools.read_variables WHEEL PYTORCH TORCHAIR RUNTIME

WHEEL is an unpacked wheel of torch_npu; the others are clones of Ascend/pytorch, Ascend/torchair and hicann/runtime, or
their repositories without a work tree, of which HEAD is read. Only names are taken, and where each is read: by the
wheel's Python, by C++, in the runtime's own table, or on a page of the documentation that is about it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from npucompose.vendor.variables import DATA
from tools.repositories import git

_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_LINES = (
    (re.compile(r'(?:getenv|GetEnv|TypeOption|Option)\(\s*"([A-Z][A-Z0-9_]{2,})"'), ("*.cpp", "*.cc", "*.h", "*.hpp")),
    (re.compile(r'\{MM_ENV_[A-Z0-9_]+,\s*"([A-Z][A-Z0-9_]{2,})"\}'), ("*.c",)),
    (re.compile(r"export ([A-Z][A-Z0-9_]{2,})="), ("docs/zh/ascend_ir/*.md", "SECURITY_README.md")),
)
"""(how a line names a variable, in which files), in a form that git's grep reads, too."""
_PAGE = re.compile(r"environment_variable/.*/([A-Z][A-Z0-9_]{2,})\.md$")
_TESTS = ("test", "tests", "testing", "examples", "experimental", "third_party", "cmake")


def read_by_python(source: str) -> Iterator[tuple[str, int]]:
    """(name, line) of `os.environ["NAME"]`, `os.environ.get("NAME")`, `os.getenv("NAME")`, `"NAME" in os.environ`."""
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("environ.get", "getenv", "environ.pop")):
            asked = node.args[:1]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked = [node.slice] if ast.unparse(node.value).endswith("environ") else []
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            asked = [node.left]
        for one in asked:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and _NAME.fullmatch(one.value):
                yield one.value, one.lineno


def of_wheel(wheel: Path) -> Iterator[tuple[str, str]]:
    """(name, file:line) of the wheel's Python, its tests left out."""
    for path in sorted((wheel / "torch_npu").rglob("*.py")):
        place = path.relative_to(wheel)
        if not set(place.parts) & set(_TESTS):
            yield from (
                (name, f"{place}:{line}") for name, line in read_by_python(path.read_text(encoding="utf-8-sig"))
            )


def of_repository(repository: Path) -> Iterator[tuple[str, str]]:
    """(name, file:line) of C++, of the runtime's table and of the documentation's pages."""
    for place in git(repository, "ls-tree", "-r", "--name-only", "HEAD").splitlines():
        if page := _PAGE.search(place):
            yield page[1], place
    for pattern, files in _LINES:
        for line in git(repository, "grep", "-nE", pattern.pattern, "HEAD", "--", *files, check=False).splitlines():
            _, place, number, text = line.split(":", 3)
            if not set(place.split("/")[:-1]) & set(_TESTS):
                yield from ((found[1], f"{place}:{number}") for found in pattern.finditer(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; say how many variables it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("repositories", type=Path, nargs=3, metavar="REPOSITORY")
    asked = parser.parse_args(arguments)
    version = next(asked.wheel.glob("torch_npu-*.dist-info")).name.removesuffix(".dist-info").replace("-", " ")
    sources = {"WHEEL": version}
    found: dict[str, str] = {}
    for name, place in of_wheel(asked.wheel):
        found.setdefault(name, f"WHEEL {place}")
    for short, project, repository in zip(
        ("TN", "TA", "RT"), ("Ascend/pytorch", "Ascend/torchair", "hicann/runtime"), asked.repositories, strict=True
    ):
        commit, date = git(repository, "log", "-1", "--format=%H %cs").split()
        sources[short] = f"{project} {commit} of {date}"
        for name, place in of_repository(repository):
            found.setdefault(name, f"{short} {place}")
    rows = [f"    {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    listed = ",\n".join(rows)
    DATA.write_text(
        f'{{\n  "sources": {json.dumps(sources, indent=4)[:-1]}  }},\n  "variables": {{\n{listed}\n  }}\n}}\n',
        encoding="utf-8",
    )
    print(f"{len(rows)} variables in {DATA.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
