"""Hydra: overrides in, a plain tree and the origin of every leaf out.

Hydra keeps no record of where a value came from, so the defaults list is walked file by file, in Hydra's own order,
and the overrides after it. Mistakes in the overrides are collected and all reported at once, before anything is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from npucompose.compose.conf import added_dirs, conf_dir
from npucompose.compose.overrides import in_our_words, named_twice, parsed_overrides, sifted

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.default_element import ResultDefault
    from hydra.core.override_parser.types import Override

COMMAND_LINE = "command line"
DEFAULT = "default"


@frozen(kw_only=True)
class Composed:
    """What the YAML and the command line say, not yet checked against the schema.

    `provenance` is {dotted path of a leaf of `tree`: "command line" | "conf/…yaml"}; `problems` are mistakes found in
    the overrides, each one sentence: the tree is then composed without them, so that the rest can be checked too.
    """

    tree: Mapping[str, Any]
    provenance: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=())


def compose(overrides: Sequence[str], *, config_dirs: Sequence[str] = (), config_name: str = "config") -> Composed:
    """Compose `conf/<config_name>.yaml` with Hydra overrides.

    `compose(["mode=eager"]).provenance["mode.name"]` is "conf/mode/eager.yaml, chosen on the command line".
    Raises ConfigError for text that is not an override and for YAML that cannot be read.
    """
    from omegaconf import OmegaConf, open_dict

    parsed = parsed_overrides(overrides)
    with _loader(added_dirs(config_dirs)) as loader:
        good, problems = sifted(loader, parsed, lambda texts: _load(loader, config_name, texts))
        texts = [str(o.input_line) for o in good]
        with in_our_words(problems):
            cfg = _load(loader, config_name, texts)
            origins = _origins(loader, config_name, texts, good)
            problems += _repeated_passes(loader, config_name, texts)
            with open_dict(cfg):
                cfg.pop("hydra", None)
            tree = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(tree, dict)
    provenance = {path: origins.get(path) or _nearest(origins, path) for path in _leaves(tree)}
    return Composed(
        tree={str(k): v for k, v in tree.items()},
        provenance=provenance,
        overrides=tuple(overrides),
        problems=tuple(problems),
    )


@contextmanager
def _loader(config_dirs: Sequence[Path]) -> Iterator[ConfigLoaderImpl]:
    """A config loader of our own, beside any that a running Hydra application holds."""
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery

    # A running hydra.main has set the version base already; setting it again to the same value is harmless.
    version.setbase("1.3")
    search_path = create_config_search_path(str(conf_dir()))
    for folder in config_dirs:
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    yield ConfigLoaderImpl(config_search_path=search_path)


def _load(loader: ConfigLoaderImpl, config_name: str, overrides: list[str]) -> Any:
    from hydra.types import RunMode

    return loader.load_configuration(config_name, overrides, run_mode=RunMode.RUN, from_shell=False)


def _defaults(loader: ConfigLoaderImpl, config_name: str, overrides: list[str]) -> list[ResultDefault]:
    """The defaults list, Hydra's own entries left out, in the order in which files are merged."""
    from hydra.types import RunMode

    found = loader.compute_defaults_list(config_name, overrides, RunMode.RUN).defaults
    return [d for d in found if d.config_path and not d.config_path.startswith("hydra")]


def _repeated_passes(loader: ConfigLoaderImpl, config_name: str, overrides: list[str]) -> list[str]:
    """Passes that two files of the defaults list bring, as in `passes=[clean,cse]` where clean holds cse already."""
    bringers: dict[str, list[str]] = {}
    for d in _defaults(loader, config_name, overrides):
        if d.package != "passes" or d.config_path is None:
            continue
        result = loader.repository.load_config(d.config_path)
        for label in result.config if result is not None else ():
            if label != "defaults":
                preset = d.parent if d.parent and d.parent.startswith("passes/") else d.config_path
                bringers.setdefault(str(label), []).append(preset)
    return [named_twice("passes", label, " and ".join(files)) for label, files in bringers.items() if len(files) > 1]


def _origins(
    loader: ConfigLoaderImpl, config_name: str, overrides: list[str], parsed: Sequence[Override]
) -> dict[str, str]:
    """{dotted path: origin}, later files and the command line last, as Hydra merges them."""
    from omegaconf import OmegaConf

    chosen = {o.key_or_group for o in parsed}
    origins: dict[str, str] = {}
    defaults = _defaults(loader, config_name, overrides)
    choosers = _choosers(loader, defaults)
    for d in defaults:
        result = loader.repository.load_config(d.config_path or "")
        if result is None:
            continue
        content = OmegaConf.to_container(result.config, resolve=False)
        package = f"{d.package}." if d.package else ""
        by = "on the command line" if d.override_key in chosen else choosers.get(d.override_key or "")
        said = f", chosen {by}" if by else ""
        for path in _leaves(content):
            if not path.startswith(("defaults", "hydra")):
                origins[package + path] = f"conf/{d.config_path}.yaml{said}"
    for o in parsed:
        if not loader.repository.group_exists(o.key_or_group) and not o.is_delete():
            for path in [p for p in origins if p.startswith(f"{o.key_or_group}.")]:
                origins[path] = COMMAND_LINE
            origins[o.key_or_group] = COMMAND_LINE
    return origins


def _choosers(loader: ConfigLoaderImpl, defaults: Sequence[ResultDefault]) -> dict[str, str]:
    """{group: "by conf/target/npu_offline.yaml"} of the groups that a file of the defaults list overrides."""
    found: dict[str, str] = {}
    for d in defaults:
        result = loader.repository.load_config(d.config_path or "")
        for entry in (result.defaults_list if result is not None else None) or ():
            if getattr(entry, "override", False):
                found[str(getattr(entry, "group", "")).strip("/")] = f"by conf/{d.config_path}.yaml"
    return found


def _leaves(tree: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of everything that is not a non-empty mapping."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}{key}.")
    elif prefix:
        yield prefix[:-1]


def _nearest(origins: Mapping[str, str], path: str) -> str:
    """The origin of the closest parent: a mapping given whole on the command line has no entry for its leaves."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in origins:
            return origins[path]
    return DEFAULT
