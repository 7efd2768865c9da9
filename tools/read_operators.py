"""Read what torch_npu wheels and torch have of each operator into the data files of src/npucompose/vendor.

    python -m tools.read_operators --trees FOLDER…          # unpacked wheels, the one in the cache besides
    python -m tools.read_operators --torch                  # the torch that is installed, and --list of another's

Nothing of a wheel is run. Of a torch that is not installed only its list of operators is read (`--list 2.14.0=FILE`,
native_functions.yaml out of its wheel): what a composite calls is taken from the installed one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npucompose.targets.npu_offline.operator_lists import read_lists, sources_digest
from npucompose.targets.npu_offline.wheel import find, version
from npucompose.vendor.versions import order_of
from npucompose.vendor.wheel_operators import CPU, GENUINE, IMPLICIT, NOWHERE, TORCH, WHEELS, WheelLists, overload_of
from tools.torch_operators import kinds

ABSENT = None


def spans(by_version: Sequence[Any]) -> Any:
    """One value where it is the same in all versions, else [[position of the version since when, value], …]."""
    changes = [[at, one] for at, one in enumerate(by_version) if at == 0 or one != by_version[at - 1]]
    if len(changes) == 1:
        return changes[0][1]
    return [change for change in changes if change != [0, ABSENT]]


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{name: spans} of what each version says of each name."""
    return {name: spans([row.get(name) for row in rows]) for name in sorted({name for row in rows for name in row})}


def folded(lists: Mapping[str, WheelLists], sources: Mapping[str, str]) -> dict[str, Any]:
    """The wheels' data file: sentences and libraries once each, and for each operator the spans of what is listed."""
    sentences: dict[str, int] = {}
    libraries = sorted({library for one in lists.values() for library in one.kernels.values()})

    def number(name: str, said: str) -> int:
        plain = said.replace(f"torch.ops.{overload_of(name)}", "{op}")
        return 0 if said == GENUINE else sentences.setdefault(plain, len(sentences) + 1)

    rows = lists.values()
    data = {
        "converters": table([{n: number(n, said) for n, said in one.converters.items()} for one in rows]),
        "not_arch35": table([{n: number(n, said) for n, said in one.not_arch35.items()} for one in rows]),
        "refuses": table([{n: number(n, said) for n, said in one.refuses.items()} for one in rows]),
        "kernels": table([{n: libraries.index(of) for n, of in one.kernels.items()} for one in rows]),
        "metas": table([dict.fromkeys(one.metas, 1) for one in rows]),
    }
    head = {"versions": list(lists), "sources": dict(sources), "sentences": list(sentences), "libraries": libraries}
    return {**head, **data}


def written(data: Mapping[str, Any]) -> str:
    """The file's text: one line for each operator, so that a diff shows what changed."""
    parts: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict):
            rows = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in value.items()
            )
            parts.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_wheels(trees: Iterable[Path]) -> dict[str, Any]:
    """The data of unpacked wheels, oldest first; SystemExit where one cannot be read."""
    by_version = {version(tree): tree for tree in trees}
    names = sorted(by_version, key=order_of)
    lists = {name: read_lists(by_version[name]) for name in names}
    for name, one in lists.items():
        for problem in one.problems.values():
            raise SystemExit(f"torch_npu {name}: {problem}.")
    return folded(lists, {name: sources_digest(by_version[name]) for name in names})


def read_torch(texts: Mapping[str, str]) -> dict[str, Any]:
    """The data of the installed torch, and of others by the text of their lists."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "torch.json"
        subprocess.run([sys.executable, "-m", "tools.torch_operators", str(file)], check=True, stdout=sys.stderr)
        installed = json.loads(file.read_text(encoding="utf-8"))
    own: dict[str, str] = installed["kinds"]
    by_version = {installed["version"]: own}
    for name, text in texts.items():
        by_version[name] = {op: _completed(op, kind, own) for op, kind in kinds(text).items()}
    names = sorted(by_version, key=order_of)
    return {
        "versions": names,
        "kinds": table([by_version[name] for name in names]),
        "without_meta": dict.fromkeys(installed["without_meta"], 1),
        "decided_by_data": dict.fromkeys(installed["decided_by_data"], 1),
        "decompositions": installed["decompositions"],
    }


def _completed(operator: str, kind: str, own: Mapping[str, str]) -> str:
    """What a composite calls as it is known of the installed torch, where the list does not say it."""
    known = own.get(operator, kind)
    same = kind.startswith(IMPLICIT) == known.startswith(IMPLICIT)
    return known if same and CPU not in (kind, known) and NOWHERE not in (kind, known) else kind


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", nargs="*", type=Path, help="folders that hold torch_npu/")
    parser.add_argument("--torch", action="store_true", help="the installed torch")
    parser.add_argument(
        "--list", nargs="*", default=[], metavar="VERSION=FILE", help="lists of other versions of torch"
    )
    given = parser.parse_args(argv)
    if given.trees is not None:
        here = find()
        data = read_wheels([*given.trees, *([here.tree] if here else [])])
        WHEELS.write_text(written(data), encoding="utf-8")
        print(f"{len(data['versions'])} wheels, {len(data['converters'])} converters -> {WHEELS}")
    if given.torch:
        texts = {
            name: Path(file).read_text(encoding="utf-8") for name, _, file in (w.partition("=") for w in given.list)
        }
        data = read_torch(texts)
        TORCH.write_text(written(data), encoding="utf-8")
        print(f"torch {', '.join(data['versions'])}: {len(data['kinds'])} operators -> {TORCH}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
