"""`npucompose recipe migrate --to 2.14.0 recipe.yaml`: what changes in a YAML between two versions of torch_npu.

Read from both option trees, of which nothing is guessed: what is gone with the name that the new version has for it,
values that it does not take, defaults that are others, and what its execution was proven on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import load_yaml
from npucompose.targets.npu_offline.option_trees import executed
from npucompose.vendor.compiler import VERSION, CompilerOptions
from npucompose.vendor.option_specs import OptionSpec, shown, stored_path
from npucompose.vendor.versions import REFERENCE, assumed, doubted, known, mode_refused, refused, tree_of


def migrate(arguments: argparse.Namespace) -> int:
    """1 where the recipe has to be changed."""
    found = migrate_file(arguments.file, arguments.to, arguments.since)
    print(found.text(), end="")
    return 1 if found.problems else 0


@frozen(kw_only=True)
class Migration:
    """What is to be said of one YAML; `problems` has to be changed in it before the new version takes it."""

    before: str
    after: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        head = f"torch_npu {self.before} -> {self.after}"
        changes = [f"  change: {one}" for one in self.problems] or ["  nothing in this recipe has to be changed"]
        return "\n".join([head, *changes, *(f"  {one}" for one in self.notes)]) + "\n"


def migrate_file(path: Path, to: str, since: str | None = None) -> Migration:
    """The experiment in a YAML file; `since` is the version that it was written for, where it does not say."""
    tree: Any = load_yaml(path)
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} holds no experiment: a mapping of sections is wanted.")
    return migration(cast("Mapping[str, Any]", tree), to, since)


def migration(tree: Mapping[str, Any], to: str, since: str | None = None) -> Migration:
    """`migration({"compiler": {…}, "mode": {"name": …}}, "2.14.0")`; other sections of an experiment say nothing."""
    section: Any = tree.get("compiler") or {}
    options = CompilerOptions.of_tree(section)
    before = known(since, "--since") if since else options.torch_npu_version or REFERENCE
    after = known(to, "--to")
    values = options.changed()
    mode = _mode(tree)
    problems = [*refused(values, after, "asked by --to")]
    wrong_mode = mode_refused(mode, after) if mode else None
    problems += [wrong_mode] if wrong_mode else []
    if options.torch_npu_version not in (None, after):
        problems.append(
            f"compiler.{VERSION}={options.torch_npu_version}: write compiler.{VERSION}={after}, or leave it out."
        )
    return Migration(before=before, after=after, problems=tuple(problems), notes=tuple(_notes(values, before, after)))


def _mode(tree: Mapping[str, Any]) -> str | None:
    """As a section, or as the choice of a defaults list: `- override /mode: npugraph_ex`."""
    said: Any = tree.get("mode")
    name = cast("Mapping[str, Any]", said).get("name") if isinstance(said, Mapping) else said
    for entry in cast("list[Any]", tree.get("defaults") or []):
        if isinstance(entry, Mapping):
            chosen = cast("Mapping[str, Any]", entry)
            name = name or chosen.get("override /mode") or chosen.get("/mode") or chosen.get("mode")
    return name if isinstance(name, str) else None


def _notes(values: Mapping[str, Any], before: str, after: str) -> Iterator[str]:
    for one in doubted(values, after):
        yield f"unknown: compiler.{one.path}: {one.why}"
    for version in (before, after):
        if stands_in := assumed(version):
            yield f"assumed: the tree of torch_npu {version} was not read, that of {stands_in} is taken"
    old, new = tree_of(before), tree_of(after)
    yield from _defaults(old, new, values)
    yield f"gone: {_listed(path for path in old if path not in new)}"
    yield f"new: {_listed(path for path in new if path not in old)}"
    yield f"execution of {after}: {executed(after)}"


def _defaults(old: Mapping[str, OptionSpec], new: Mapping[str, OptionSpec], values: Mapping[str, Any]) -> Iterator[str]:
    """Defaults that are others, and values that are others to choose from, among what both versions have."""
    for path, leaf in old.items():
        other = new.get(path)
        if other is None or stored_path(other) != stored_path(leaf):
            continue
        if leaf.default != other.default:
            what = "which this recipe leaves to the default" if path not in values else "which this recipe sets"
            yield f"default: compiler.{path} {shown(leaf.default)} -> {shown(other.default)}, {what}"
        if leaf.allowed() != other.allowed():
            yield f"values: compiler.{path} {leaf.allowed()} -> {other.allowed()}"


def _listed(paths: Iterator[str]) -> str:
    found = list(paths)
    return ", ".join(found) if found else "no option"
