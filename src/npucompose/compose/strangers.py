"""YAML that somebody else wrote: what is refused before Hydra reads it, so that no file runs code or reads a secret.

Hydra itself would instantiate `hydra.callbacks`, follow `hydra.searchpath` and fill in `${oc.env:TOKEN}`. The packaged
conf/ is ours and may; every other file may only say what an experiment is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import IO, Any

from npucompose.errors import ConfigError
from npucompose.schema.compiler import EVERY_LEAF, CompilerOptions
from npucompose.schema.executor import Executor, Ray
from npucompose.schema.setting import COMMAND_LINE

WRITTEN = ("path", "dir")
"""Kinds of leaves that name a folder which is written to."""
MOST_BYTES = 1_000_000
MOST_NODES = 20_000
"""Values in a file, each alias counted with all that it stands for."""
MOST_DEPTH = 40
RESOLVER = re.compile(r"\$\{\s*[^\W\d][\w.]*\s*:")
"""`${oc.env:HOME}` and the like; `${model.size}` is a reference and allowed."""


def check_text(path: Path) -> None:
    """Refuse a file that is too large, too deep, or that grows by its aliases; it is read only when it is small."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{path.name} has {size:,} bytes; a configuration has at most {MOST_BYTES:,}.")
    try:
        with path.open(encoding="utf-8") as text:
            _check_growth(text, path.name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not text in UTF-8: {error}.") from error


def _check_growth(text: IO[str], name: str) -> None:
    """Count values as the reader would make them, from the events alone: nothing is built yet."""
    import yaml

    open_sizes: list[tuple[str | None, int]] = []
    anchors: dict[str, int] = {}
    total = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append((event.anchor, total))
            total += 1
            if len(open_sizes) > MOST_DEPTH:
                raise ConfigError(f"{name} is nested more than {MOST_DEPTH} deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_sizes.pop()
            if anchor:
                anchors[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            total += anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if total > MOST_NODES:
            raise ConfigError(f"{name} holds more than {MOST_NODES:,} values, its aliases written out.")


def check_content(name: str, content: Any, package: str | None) -> None:
    """Refuse what would act on Hydra itself; `content` is plain, its interpolations not resolved."""
    problems = [f"{name}: {problem}" for problem in _problems(name, content, package or "")]
    if problems:
        raise ConfigError(*problems)


def path_problems(options: CompilerOptions, said_by: Callable[[str], str]) -> Iterator[str]:
    """A sentence for each folder that the vendor's compiler would write to, leads out of the run directory, and was not
    named by the person; `said_by` tells the origin of a dotted key."""
    for path, value in options.changed().items():
        if EVERY_LEAF[path].kind not in WRITTEN or not isinstance(value, str):
            continue
        key, place = f"compiler.{path}", PurePath(value)
        if (place.is_absolute() or ".." in place.parts or value.startswith("~")) and said_by(key) != COMMAND_LINE:
            yield (
                f"{key}={value!r} leads out of the run directory and comes from {said_by(key)}; only the command line "
                "itself can say that."
            )


def address_problems(executor: Executor, said_by: Callable[[str], str], *, trust: bool) -> Iterator[str]:
    """A sentence where a file names the Ray cluster: Ray unpickles what a cluster answers."""
    origin = said_by("executor.address")
    if isinstance(executor, Ray) and executor.address != "auto" and origin != COMMAND_LINE and not trust:
        yield (
            f"executor.address={executor.address} comes from {origin}, and a cluster's answers can run code here. If "
            "you trust it, say the address on the command line, or trust=true."
        )


def _problems(name: str, content: Any, package: str) -> Iterator[str]:
    own = "only npucompose's own conf/ and the command line may set Hydra."
    if name.startswith("hydra/") or _is_hydra(package) or (isinstance(content, Mapping) and "hydra" in content):
        yield f"a file may not hold hydra.*: {own}"
    for entry in _default_entries(content):
        group, _, packaged = entry.removeprefix("override ").removeprefix("optional ").partition("@")
        if _is_hydra(group.strip().lstrip("/")) or _is_hydra(packaged.strip()):
            yield f"the defaults list may not name '{entry}': {own}"
    for path, value in _walk(content):
        if path.rpartition(".")[2] == "_target_":
            yield f"'{path}' would name code to run; choices are found by registered name."
        if isinstance(value, str) and RESOLVER.search(value):
            yield f"'{path}' uses a resolver ({value[:60]}); a file may only refer to other values: ${{model.size}}."


def _is_hydra(path: str) -> bool:
    return re.split(r"[./]", path, maxsplit=1)[0] == "hydra"


def _default_entries(content: Any) -> Iterator[str]:
    defaults = content.get("defaults") if isinstance(content, Mapping) else None
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, Mapping):
            yield from (str(key) for key in entry)
        elif isinstance(entry, str):
            yield entry


def _walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything that is no container, and of every key."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(tree, Mapping):
        items = iter(tree.items())
    elif isinstance(tree, list):
        items = iter(enumerate(tree))
    for key, value in items:
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, (Mapping, list)):
            yield here, None
            yield from _walk(value, here)
        else:
            yield here, value
