"""The one way in which a configuration comes together: the option table's defaults, then files, then overrides.

Plain data in, plain data out: nothing that is given is changed, and what is equal is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from npucompose.errors import ConfigError
from npucompose.models import MODELS
from npucompose.passes import PASSES
from npucompose.registry import Registry
from npucompose.schema.experiment import Experiment
from npucompose.schema.sections import SECTIONS
from npucompose.table.options import base_tree, free_mappings
from npucompose.table.structure import classes_of
from npucompose.targets import TARGETS
from npucompose.vendor.compiler import EVERY_LEAF
from npucompose.vendor.inductor import is_option

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

Tree = Mapping[str, Any]
BY_NAME: Mapping[str, Registry[Any]] = {"target": TARGETS, "model": MODELS}
OTHER_OPTIONS: Mapping[str, Callable[[str], bool]] = {"compiler": EVERY_LEAF.__contains__, "inductor": is_option}
"""{section: whether it has an option that its base tree leaves out}: other versions of torch_npu or torch have it."""


@cache
def _classes() -> dict[str, dict[str, Any]]:
    """{section of an experiment: {name: class}}; a section that is always the same class has the name ''."""
    found: dict[str, dict[str, Any]] = {}
    for field in attrs.fields(attrs.resolve_types(Experiment)):
        kinds = classes_of(field.type)
        if field.name in (*BY_NAME, "mode", "extensions") or not kinds:
            continue
        several = len(kinds) > 1
        found[field.name] = {attrs.fields(one).name.default if several else "": one for one in kinds}
    return found


def _sections(tree: Tree) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    """(where it lies, whose options it holds) of every section whose class is known."""
    for name, kinds in _classes().items():
        section = tree.get(name)
        if "" in kinds:
            yield (name,), kinds[""]
        elif isinstance(section, Mapping) and section.get("name") in kinds:
            yield (name,), kinds[section["name"]]
    for name, registry in BY_NAME.items():
        section = tree.get(name)
        if isinstance(section, Mapping) and (cls := _registered(registry, section.get("name"))):
            yield (name,), cls
    named = tree.get("extensions")
    for name in named if isinstance(named, Mapping) else ():
        if cls := _registered(SECTIONS, name):
            yield ("extensions", name), cls
    passes = tree.get("passes")
    for label, options in passes.items() if isinstance(passes, Mapping) else ():
        name = options.get("pass", label) if isinstance(options, Mapping) else label
        if (options is None or isinstance(options, Mapping)) and (cls := _registered(PASSES, name)):
            yield ("passes", label), cls


def _registered(registry: Registry[Any], name: Any) -> type[Any] | None:
    """None where the check will have to say what is wrong with the name."""
    with suppress(ConfigError):
        return registry.get(name) if isinstance(name, str) else None
    return None


@cache
def _plain_keys() -> dict[str, Any]:
    """{field of an experiment that is no section: its default}."""
    plain = base_tree(Experiment)
    return {name: value for name, value in plain.items() if name not in {*_classes(), *BY_NAME, "mode", "extensions"}}


def completed(tree: Tree, extensions: Iterable[str] = ()) -> dict[str, Any]:
    """What files say, above the default of every option that they leave out.

    `completed({"target": {"name": "npu"}, …})["target"]` has `index: 0` and each other option of that target.
    `extensions` are sections of installed packages that nothing in `tree` names.
    """
    if named := [name for name in extensions if _registered(SECTIONS, name)]:
        tree = {**tree, "extensions": {**dict.fromkeys(named), **(tree.get("extensions") or {})}}
    named = dict.fromkeys(field.name for field in attrs.fields(Experiment))
    whole = {**_plain_keys(), **tree}
    whole = {name: whole[name] for name in named if name in whole} | whole
    for path, cls in _sections(whole):
        at = whole
        for part in path[:-1]:
            at[part] = at = dict(at[part])
        given = at.get(path[-1])
        if given is None or isinstance(given, Mapping):
            name = {"name": given["name"]} if given and "name" in given else {}
            at[path[-1]] = _above({**name, **base_tree(cls)}, given or {}, free_mappings(cls))
    return whole


def _above(base: Tree, given: Tree, free: Mapping[str, bool], at: str = "") -> dict[str, Any]:
    """`given`, and what of `base` it leaves out, in the order of `base`."""
    made = {**base, **given}
    for key, value in given.items():
        inside, path = base.get(key), f"{at}{key}"
        if isinstance(inside, Mapping) and isinstance(value, Mapping) and path not in free:
            made[key] = _above(inside, value, free, f"{path}.")
    return made


@attrs.frozen
class Keys:
    """Which keys a tree may have beside those that are in it."""

    free: Mapping[str, bool]
    """{dotted path of a mapping whose keys are the user's: whether all that follows is one key}."""

    @staticmethod
    def of(tree: Tree) -> Keys:
        found: dict[str, bool] = {}
        for path, cls in _sections(tree):
            found |= {".".join((*path, inside)): whole for inside, whole in free_mappings(cls).items()}
        return Keys(found)

    def split(self, key: str) -> list[str]:
        """`shapes.gears.x.0` is `["shapes", "gears", "x.0"]`."""
        for path, whole in self.free.items():
            if whole and key.startswith(f"{path}."):
                return [*path.split("."), key[len(path) + 1 :]]
        return key.split(".")

    def takes(self, parts: Sequence[str], value: Any) -> bool:
        """Whether a key that is not in the tree can be set there all the same."""
        section, *rest = parts
        if section in OTHER_OPTIONS:
            return OTHER_OPTIONS[section](".".join(rest))
        if section == "passes":  # a label of the user's: the mapping says which pass
            return len(rest) == 1 and isinstance(value, Mapping) and "pass" in value
        return any(".".join(parts[:at]) in self.free for at in range(1, len(parts)))


def with_overrides(tree: Tree, overrides: Sequence[Override], keys: Keys) -> dict[str, Any]:
    """The tree with values of the command line in it; ConfigError for what cannot be deleted."""
    made = dict(tree)
    for o in overrides:
        parts = keys.split(o.key_or_group)
        if o.is_delete():
            _check_deletion(made, parts, o)
        node: Any = made
        for part in parts[:-1]:
            node = _opened(node, part, o)
        last = parts[-1]
        if o.is_delete():
            del node[last]
        elif isinstance(node, list):
            node[_index(node, last, o)] = o.value()
        else:
            node[last] = merged(node.get(last), o.value())
    return made


def _opened(node: Any, part: str, o: Override) -> Any:
    """A copy of what lies at `part`, put in its place; an empty mapping where a value or nothing lies."""
    at: Any = _index(node, part, o) if isinstance(node, list) else part
    inside = node[at] if isinstance(node, list) else node.get(at)
    node[at] = list(inside) if isinstance(inside, list) else dict(inside) if isinstance(inside, Mapping) else {}
    return node[at]


def _index(node: Sequence[Any], part: str, o: Override) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise ConfigError(f"'{part}' is no place of a list of {len(node)} @ {o.input_line}.")
    return int(part)


def merged(there: Any, value: Any) -> Any:
    """A mapping goes into the one that is there, all else in the place of what is there; `???` within a mapping, which
    is Hydra's word for what is still to be said, only where there is nothing.
    """
    if not isinstance(there, Mapping) or not isinstance(value, Mapping):
        return value
    said = {key: inner for key, inner in value.items() if key not in there or inner != "???"}
    return {**there, **{key: merged(there.get(key), inner) for key, inner in said.items()}}


def _check_deletion(tree: Tree, parts: Sequence[str], o: Override) -> None:
    there: Any = tree
    for part in parts:
        there = there.get(part) if isinstance(there, Mapping) else None
    if there is None:
        raise ConfigError(f"Could not delete from config. '{o.key_or_group}' does not exist.")
    if o.value() is not None and o.value() != there:
        raise ConfigError(
            f"Could not delete from config. The value of '{o.key_or_group}' is {there} and not {o.value()}."
        )
