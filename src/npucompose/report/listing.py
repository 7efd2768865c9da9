"""What `npucompose list …` prints: choices of a group of conf/, or TorchAir's options. Loads no torch, no Hydra."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from airflow_free.foreign_files import open_regular
from npucompose.compose.conf import WITHOUT_YAML, files_of, registry_of
from npucompose.console import console
from npucompose.errors import ConfigError, unknown, visible
from npucompose.input_safety import MOST_BYTES
from npucompose.registry import OURS, Registry
from npucompose.report import operators
from npucompose.schema.sizes import as_bytes
from npucompose.vendor import devices, inductor
from npucompose.vendor.compiler import LEAVES, VERSION
from npucompose.vendor.option_specs import OptionSpec, shown
from npucompose.vendor.versions import known, tree_of

if TYPE_CHECKING:
    from rich.console import Console

OPTIONS, KEYS, SOCS, OPERATORS = "options", "keys", "socs", "operators"
MOST_READ, MOST_SHOWN = 4096, 300
"""Bytes of a file in which its comment is looked for, and letters of it that are shown: the file may be anybody's."""
KINDS: Mapping[str, str] = {
    "passes": "passes",
    "modes": "mode",
    "targets": "target",
    "models": "model",
    "pipelines": "pipeline",
    "streams": "streams",
    "adapts": "adapt",
    "shapes": "shapes",
    "tilings": "tiling",
    "compilers": "compiler",
    "inductors": "inductor",
    "benchmarks": "benchmark",
    "scenarios": "scenario",
    "experiments": "experiment",
    "searches": "search",
    "executors": "executor",
    "trackers": "tracker",
}
"""What can be listed -> the folder of conf/ that holds it; `options` comes from the table instead."""


WITHOUT_FILES = ("stages", "dialects")
"""What is registered and has no YAML of its own."""

Registries = Mapping[str, Registry[Any]]


@frozen(kw_only=True)
class ListedChoice:
    """One YAML of a group, or what has none: its name, the first line about it, where it lies, who brings it."""

    name: str
    doc: str
    file: str
    package: str = OURS


def kinds() -> tuple[str, ...]:
    """What `list` takes: the plural, or the group's own name as it stands before the `=`."""
    return tuple(dict.fromkeys((*KINDS, *WITHOUT_FILES, OPTIONS, KEYS, SOCS, OPERATORS, *KINDS.values())))


def choices(kind: str, conf: Sequence[Path], packages: Mapping[Path, str] | None = None) -> tuple[ListedChoice, ...]:
    """The choices of a group by name: `choices("modes", [Path("conf")])[0].name` is `eager`.

    A name in several folders of `conf` is the first one's: give them in the order of Hydra's search path. `packages`
    says who brings a folder.
    """
    folder = KINDS.get(kind, kind)
    if folder not in KINDS.values():
        raise ConfigError(unknown("list", kind, (*KINDS, *WITHOUT_FILES, OPTIONS, KEYS, SOCS, OPERATORS)))
    found = {
        file.stem: ListedChoice(
            name=file.stem, doc=first_comment(file), file=str(file), package=(packages or {}).get(root, OURS)
        )
        for root in reversed(conf)
        for file in files_of(root / folder)
    }
    if folder in WITHOUT_YAML:
        found |= {entry.name: entry for entry in registered(registry_of(folder), but=found)}
    return tuple(found[name] for name in sorted(found))


def registered(registry: Registry[Any], but: Container[str] = ()) -> tuple[ListedChoice, ...]:
    """What has no YAML, in the order of its registry: the first line of its docstring."""
    found = registry.every([name for name in registry.names() if name not in but])
    return tuple(
        ListedChoice(name=name, doc=(one.__doc__ or "").partition("\n")[0], file="", package=registry.package(name))
        for name, one in found.items()
    )


def first_comment(file: Path) -> str:
    """The text of the first comment line, Hydra's own (`# @package`) apart; empty where there is none."""
    try:
        with open_regular(file, MOST_BYTES) as opened:
            head = opened.read(MOST_READ).decode("utf-8", errors="replace")
    except OSError:  # what is no file of text says nothing of itself; who chooses it is told
        return ""
    for line in head.splitlines():
        text = line.strip()
        if text.startswith("#") and not text.startswith("# @"):
            return visible(text.lstrip("# "))[:MOST_SHOWN]
    return ""


def options(under: str = "", version: str | None = None) -> tuple[dict[str, Any], ...]:
    """One JSON-able row for each leaf of both trees, or of those below `under`; `set_by` says what is set elsewhere.

    Below `inductor` they are Inductor's, of the installed torch.
    The trees are those of torch_npu 2.13.0, or of `version`.
    """
    if _is_under(under, inductor.WHERE):
        if version is not None:
            raise ConfigError("inductor's options are torch's, not torch_npu's: leave --torch-npu out.")
        return inductor.options(under)
    table = _table(version)
    leaves = [leaf for leaf in table.values() if _is_under(leaf.path, under)]
    if not leaves:
        raise ConfigError(unknown("option", under, (*table, inductor.WHERE)))
    return tuple(
        {
            "option": leaf.path,
            "kind": leaf.kind,
            "takes": leaf.allowed(),
            "default": leaf.default,
            "modes": list(leaf.modes),
            "needs": leaf.needs,
            "set_by": leaf.set_by,
            "twin": leaf.twin,
            "doc": leaf.doc,
            "source": leaf.source,
        }
        for leaf in leaves
    )


def _table(version: str | None) -> Mapping[str, OptionSpec]:
    return LEAVES if version is None else tree_of(known(version, "--torch-npu"))


def show(
    kind: str,
    conf: Sequence[Path],
    *,
    as_json: bool = False,
    under: str = "",
    version: str | None = None,
    packages: Mapping[Path, str] | None = None,
    registries: Registries | None = None,
) -> None:
    """Print a group as a table or as JSON; with kind `options` TorchAir's (below `under`), with `keys` all others.

    `packages` says who brings a folder of `conf`, `registries` holds what has no folder.
    """
    if under and kind not in (OPTIONS, OPERATORS):
        raise ConfigError(f"only options lie under a path, and operators under a name: `list options --under {under}`.")
    if kind in (OPTIONS, KEYS, SOCS, OPERATORS):
        rows = _rows(kind, under, version)
    else:
        entries = registered(registries[kind]) if registries and kind in registries else choices(kind, conf, packages)
        rows = tuple(asdict(entry) for entry in entries)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif kind == OPTIONS and _is_under(under, inductor.WHERE):
        cells = [(row["option"], row["takes"], shown(row["default"]), row["doc"]) for row in rows]
        _print_table(("option", "takes", "default", "meaning"), cells)
    elif kind == OPTIONS:
        _print_table(("option", "takes", "default", "takes effect in", "meaning"), [_option_cells(row) for row in rows])
    elif kind == KEYS:
        _print_table(("key", "takes", "default", "of", "meaning"), [_key_cells(row) for row in rows])
    elif kind == SOCS:
        _print_table(SOC_HEAD, [_soc_cells(row) for row in rows])
    elif kind == OPERATORS:
        _print_table(operators.HEAD, [operators.cells(row) for row in rows])
    else:
        columns = ("name", "package", "doc") if any(row["package"] != OURS for row in rows) else ("name", "doc")
        head = {"name": KINDS.get(kind, kind), "package": "package", "doc": "meaning"}
        _print_table([head[one] for one in columns], [[row[one] for one in columns] for row in rows])


def _rows(kind: str, under: str, version: str | None) -> tuple[dict[str, Any], ...]:
    if kind == OPTIONS:
        return options(under, version)
    if kind == OPERATORS:
        return operators.rows(under, version)
    if kind == KEYS:
        from npucompose.report.keys import keys

        return keys()
    return socs()


SOC_HEAD = ("soc", "family", "cube", "vector", "memory", "L2", "MHz", "streams × depth", "tiling sink", "captures")


def socs() -> tuple[dict[str, Any], ...]:
    """One JSON-able row for each SoC that `target.soc` takes; bytes where it is memory, null where nobody says."""
    known = devices.table()
    return tuple(
        {
            "soc": name,
            **asdict(row),
            "title": known.families[row.family].title,
            "sinks": known.families[row.family].sinks,
            "captures": known.families[row.family].captures,
            "source": known.families[row.family].source,
        }
        for name, row in known.socs.items()
    )


def _soc_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    said = {True: "yes", False: "no", None: "unknown"}
    memory = "unknown" if row["memory"] is None else as_bytes(row["memory"])
    sizes = (row["cube"], row["vector"], memory, as_bytes(row["l2"]), row["mhz"], f"{row['streams']} × {row['depth']}")
    return row["soc"], row["family"], *map(str, sizes), said[row["sinks"]], said[row["captures"]]


def yaml_of(under: str = "", version: str | None = None) -> str:
    """A choice of conf/compiler to begin with, or the part of it below `under`: every settable leaf at its default."""
    if under == inductor.WHERE:
        return inductor.yaml_default()
    table = _table(version)
    of_version = f" in torch_npu {known(version)}" if version else ""
    asked = (f" --under {under}" if under else "") + (f" --torch-npu {version}" if version else "")
    trees = under or "torchair's CompilerConfig and, under npugraph_ex, of npugraph_ex's"
    head = [
        f"# Every option of {trees}{of_version}, at its default: override what you need.",
        f"# Written by `npucompose list options --yaml{asked}`; do not edit by hand.",
        "# Whose option tree is meant; null is the torch_npu that is found here, or 2.13.0 where none is.",
        f"{VERSION}: {json.dumps(known(version) if version else None)}",
    ]
    lines: list[str] = []
    opened: dict[str, str] = {}
    for leaf in table.values():
        if leaf.set_by != "compiler" or not _is_under(leaf.path, under):
            continue
        *groups, name = leaf.path.split(".")
        heads = {".".join(groups[: n + 1]): f"{'  ' * n}{group}:" for n, group in enumerate(groups)}
        lines += [head for path, head in heads.items() if path not in opened]
        opened |= heads
        indent = "  " * len(groups)
        doc = f"{leaf.doc[0].upper()}{leaf.doc[1:]}. Takes {leaf.allowed()}. Acts in {', '.join(leaf.modes)}."
        lines += [f"{indent}# {doc}", f"{indent}{name}: {json.dumps(leaf.default)}"]
    return "\n".join([*head, *lines]) + "\n"


def _is_under(path: str, under: str) -> bool:
    return not under or path == under or path.startswith(f"{under}.")


def _option_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    doc = row["doc"] if row["set_by"] == "compiler" else f"{row['doc']} (not set here: {row['set_by']})"
    return row["option"], row["takes"], shown(row["default"]), ", ".join(row["modes"]) or "no mode", doc


def _key_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    default = "needed" if row["needed"] else shown(row["default"])
    return row["key"], row["takes"], default, ", ".join(row["of"]), row["meaning"]


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console_for_tables().print(table)


def console_for_tables() -> Console:
    """A console as wide as the terminal; wide enough for a table where the output goes to a file or a pipe."""
    return console(width=None if sys.stdout.isatty() else 200, highlight=False)
