"""Read the option trees of torch_npu wheels into src/npucompose/vendor/torch_npu_options.json.

    python -m tools.read_option_trees                       # the versions that the file has now
    python -m tools.read_option_trees 2.13.0 2.14.0 2.15.0  # these

Wheels are downloaded with pip into a temporary folder, unless --wheels names a folder that has them; each is unpacked
and read in a process of its own. Nothing of a wheel is installed, and nothing but its `configs` packages is run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from npucompose.errors import FetchError
from npucompose.targets.npu_offline.option_trees import read_tree, sources_digest
from npucompose.targets.npu_offline.wheel import unpack, version
from npucompose.vendor.option_specs import VendorOption
from npucompose.vendor.versions import DATA, order_of, versions

PYTHON, PLATFORMS = "3.11", ("manylinux_2_28_x86_64", "manylinux2014_x86_64")
Trees = Mapping[str, Sequence[VendorOption]]


def folded(trees: Trees, sources: Mapping[str, str]) -> dict[str, Any]:
    """{version: leaves} as the data file has it: for each leaf the spans of versions in which it is the same.

    `trees` goes from the oldest version to the newest; `sources` has the digest of the files that declare each. A span
    says since when and until when (null: it is in the newest version), and what was true in between.
    """
    order = list(trees)
    leaves: dict[str, list[dict[str, Any]]] = {}
    for at, name in enumerate(order):
        for leaf in trees[name]:
            spans = leaves.setdefault(leaf.path, [])
            said = declared(leaf)
            if spans and spans[-1]["until"] == order[at - 1] and _said(spans[-1]) == said:
                spans[-1]["until"] = name
            else:
                spans.append({"since": name, "until": name, **said})
    for spans in leaves.values():
        if spans[-1]["until"] == order[-1]:
            spans[-1]["until"] = None
    return {"versions": order, "sources": {name: sources[name] for name in order}, "leaves": leaves}


def declared(leaf: VendorOption) -> dict[str, Any]:
    """What a class declares, as JSON has it: no path, no empty entry but the default."""
    said = attrs.asdict(leaf)
    del said["path"]
    if said["allowed"] is not None:
        said["allowed"] = list(said["allowed"])
    return {name: value for name, value in said.items() if value is not None or name == "default"}


def _said(span: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in span.items() if name not in ("since", "until")}


def in_order(names: Sequence[str]) -> list[str]:
    """Oldest first: 2.9.0.post6 before 2.13.0."""
    return sorted(names, key=order_of)


def written(data: Mapping[str, Any]) -> str:
    """The file's text: one line for each span, so that a diff shows what changed."""
    sources = ",\n".join(f"    {json.dumps(name)}: {json.dumps(digest)}" for name, digest in data["sources"].items())
    head = [f'  "versions": {json.dumps(data["versions"])},', '  "sources": {', sources, "  },"]
    lines = ["{", *head, '  "leaves": {']
    entries: list[str] = []
    for path, spans in data["leaves"].items():
        rows = ",\n".join(f"      {json.dumps(span)}" for span in spans)
        entries.append(f"    {json.dumps(path)}: [\n{rows}\n    ]")
    return "\n".join([*lines, ",\n".join(entries), "  }", "}"]) + "\n"


def downloaded(name: str, folder: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--python-version", PYTHON, *(word for p in PLATFORMS for word in ("--platform", p)),
        "--dest", str(folder), f"torch_npu=={name}",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise FetchError(f"pip cannot download torch_npu {name}: {ran.stderr.strip()[-300:]}")
    return wheel_in(folder, name)


def wheel_in(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"torch_npu-{name}-*.whl"))
    if not found:
        raise FetchError(f"{folder} holds no torch_npu-{name}-*.whl.")
    return found[0]


def read(name: str, wheels: Path | None) -> tuple[tuple[VendorOption, ...], str]:
    """(leaves, digest of the files that declare them)."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = wheel_in(wheels, name) if wheels else downloaded(name, folder)
        unpack(wheel, folder / "tree")
        if version(folder / "tree") != name:
            raise FetchError(f"{wheel.name} says of itself that it is torch_npu {version(folder / 'tree')}.")
        return read_tree(folder / "tree"), sources_digest(folder / "tree") or ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read the option trees of torch_npu wheels into the data file.")
    parser.add_argument("versions", nargs="*", help="exact versions (default: those of the file)")
    parser.add_argument("--wheels", type=Path, help="a folder that holds the wheels")
    parser.add_argument("--out", type=Path, default=DATA, help="the data file")
    arguments = parser.parse_args(argv)
    names = in_order(arguments.versions or versions())
    found = {name: read(name, arguments.wheels) for name in names}
    data = folded({name: leaves for name, (leaves, _) in found.items()}, {name: d for name, (_, d) in found.items()})
    arguments.out.write_text(written(data), encoding="utf-8")
    print(f"{len(names)} versions, {len(data['leaves'])} leaves -> {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
