"""TorchAir's two option trees as one checked value: what a person asks of torchair and npugraph_ex. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from attrs import field, frozen

from npucompose.errors import ConfigError, did_you_mean, listed, unknown
from npucompose.vendor.leaf import ELSEWHERE, Leaf, shown
from npucompose.vendor.versions import NPUGRAPH_EX_LEAVES, TORCHAIR, every_leaf, known, tree_of

LEAVES: Mapping[str, Leaf] = {leaf.path: leaf for leaf in TORCHAIR + NPUGRAPH_EX_LEAVES}
"""Every leaf of both trees of torch_npu 2.13.0 by its YAML path: 73 of torchair, then 30 under `npugraph_ex.`."""

EVERY_LEAF: Mapping[str, Leaf] = every_leaf()
"""Those, then the leaves that only other versions have; `npucompose.vendor.versions` says which have which."""

VERSION = "torch_npu_version"
"""The one key under `compiler` that is no option of TorchAir's: whose option tree is meant."""


def _is_group(path: str) -> bool:
    return any(leaf.startswith(f"{path}.") for leaf in EVERY_LEAF)


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they are kept: checked, in the order of the table, and only those that differ from the default."""
    problems: list[str] = []
    kept: dict[str, Any] = {}
    for path, value in values.items():
        try:
            kept[path] = _checked(path, value, "compiler")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return {path: kept[path] for path, leaf in EVERY_LEAF.items() if path in kept and kept[path] != leaf.default}


def _known(version: str | None) -> str | None:
    return None if version is None else known(version, f"compiler.{VERSION}")


@frozen(kw_only=True)
class CompilerOptions:
    """Equal values ask for the same; `CompilerOptions.of_tree({"ge_config": {"oo_level": "O1"}}).changed()` is
    `{"ge_config.oo_level": "O1"}`. Only what differs from TorchAir's defaults is kept, so a YAML that spells the
    defaults out is the same point of the design space as one that does not.
    """

    values: Mapping[str, Any] = field(factory=dict[str, Any], converter=_kept)
    """{path: value}, as `changed()`; names and values are checked, existence of files only by `of_tree`."""
    torch_npu_version: str | None = field(default=None, converter=_known)
    """The version whose option tree is asked for; None leaves it to the torch_npu that is found."""

    @classmethod
    def of_tree(cls, tree: Mapping[str, Any], path: str = "compiler") -> CompilerOptions:
        """What YAML says under `path`. Every mistake is reported at once, each with its full path."""
        problems: list[str] = []
        values: dict[str, Any] = {}
        version = _version(tree, path, problems)
        for found, value in _flat(_options(tree), "", path, problems):
            try:
                values[found] = _checked(found, value, path)
            except ConfigError as error:
                problems += error.problems
                continue
            missing = EVERY_LEAF[found].missing(values[found])
            if missing:
                problems.append(f"{path}.{found} {missing}.")
        if problems:
            raise ConfigError(*problems)
        return cls(values=values, torch_npu_version=version)

    @classmethod
    def base_tree(cls) -> dict[str, Any]:
        """Every settable option of torch_npu 2.13.0 at its default."""
        return cls().as_tree()

    def __getitem__(self, path: str) -> Any:
        """The value of `path`, which is the default where nothing was asked."""
        return self.values[path] if path in self.values else EVERY_LEAF[path].default

    @staticmethod
    def default(path: str) -> Any:
        return EVERY_LEAF[path].default

    def changed(self) -> dict[str, Any]:
        """{path: value} of what differs from TorchAir's defaults, in the order of the table."""
        return dict(self.values)

    def with_values(self, values: Mapping[str, Any]) -> CompilerOptions:
        """The same with other values: `with_values({"experimental_config.tiling_schedule_optimize": True})`."""
        return CompilerOptions(values={**self.values, **values}, torch_npu_version=self.torch_npu_version)

    def as_tree(self, changed_only: bool = False) -> dict[str, Any]:
        """A nested, JSON-able mapping that `of_tree` reads back: every settable leaf, or only what is changed."""
        tree: dict[str, Any] = {}
        if self.torch_npu_version is not None or not changed_only:
            tree[VERSION] = self.torch_npu_version
        there = LEAVES if self.torch_npu_version is None else tree_of(self.torch_npu_version)
        for path, leaf in EVERY_LEAF.items():
            if leaf.set_by != "compiler" or (path not in self.values and (changed_only or path not in there)):
                continue
            *groups, name = path.split(".")
            at = tree
            for group in groups:
                at = at.setdefault(group, {})
            value = self[path]
            at[name] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
        return tree


def _options(tree: Any) -> Any:
    """The tree without the key that is no option; what is no mapping is refused where the rest is."""
    if not isinstance(tree, Mapping):
        return tree
    return {name: value for name, value in cast("Mapping[Any, Any]", tree).items() if name != VERSION}


def _version(tree: Any, where: str, problems: list[str]) -> str | None:
    given = cast("Mapping[str, Any]", tree).get(VERSION) if isinstance(tree, Mapping) else None
    if given is None or isinstance(given, str):
        try:
            return None if given is None else known(given, f"{where}.{VERSION}")
        except ConfigError as error:
            problems += error.problems
            return None
    problems.append(f"{where}.{VERSION} takes a version such as 2.13.0, as text, or null; given {shown(given)}.")
    return None


def _flat(tree: Any, at: str, where: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf that `tree` names; what is no leaf and no group becomes a problem."""
    if not isinstance(tree, Mapping):
        full = f"{where}.{at}".rstrip(".")
        there = listed(_children(at))
        problems.append(f"{full} takes a mapping of options; given {shown(tree)}. Options there: {there}.")
        return
    for name, value in cast("Mapping[Any, Any]", tree).items():
        path = f"{at}.{name}" if at else str(name)
        if path in EVERY_LEAF:
            yield path, value
        elif _is_group(path):
            yield from _flat(value, path, where, problems)
        else:
            problems.append(_unknown(str(name), at, where))


def _children(group: str) -> tuple[str, ...]:
    """Settable names one level below `group`: `_children("fusion_config")` is `("fusion_switch_file",)`."""
    prefix = f"{group}." if group else ""
    table = LEAVES if any(path.startswith(prefix) for path in LEAVES) else EVERY_LEAF
    below = [path for path, leaf in table.items() if path.startswith(prefix) and leaf.set_by == "compiler"]
    return tuple(dict.fromkeys(path.removeprefix(prefix).split(".")[0] for path in below))


def _unknown(name: str, group: str, where: str) -> str:
    """Says where the same name lives if it lives elsewhere (`compiler.oo_level`), else which sibling is near."""
    full = f"{where}.{group}".rstrip(".")
    near = [path for path in LEAVES if path.split(".")[-1] == name]
    near = near or [path for path in EVERY_LEAF if path.split(".")[-1] == name]
    if near:
        there = " or ".join(f"{where}.{path}" for path in near)
        return f"unknown option '{name}' @ {full}. Did you mean {there}? Options there: {listed(_children(group))}."
    return unknown("option", name, _children(group), full)


def _checked(path: str, value: Any, where: str) -> Any:
    if path not in EVERY_LEAF:
        group, _, name = path.rpartition(".")
        raise ConfigError(_unknown(name, group, where))
    leaf = EVERY_LEAF[path]
    if leaf.set_by != "compiler":
        raise ConfigError(f"{where}.{path} is not set under {where}: {ELSEWHERE[leaf.set_by]}.")
    try:
        return leaf.checked(value)
    except ValueError as error:
        choices = [str(c) for c in leaf.choices or ()]
        hint = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
        raise ConfigError(f"{where}.{path} {error}. {hint}".rstrip()) from None
