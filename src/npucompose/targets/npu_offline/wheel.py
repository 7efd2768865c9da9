"""Where the unpacked torch_npu wheel lies: found, never imported. Loads no torch."""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from attrs import frozen

from npucompose import private
from npucompose.errors import ConfigError
from npucompose.machine import cache_dir, installed_version

TREE_VARIABLE = "NPUCOMPOSE_TORCH_NPU"
CACHE = "the cache"
FETCH = "npucompose fetch torch_npu"

_VERSION_FILE = Path("torch_npu") / "version.py"
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_WANTS_TORCH = re.compile(r"^Requires-Dist:\s*torch\s*\(?\s*==\s*([0-9][^\s;)]*)", re.MULTILINE)


@frozen(kw_only=True)
class Found:
    """An unpacked wheel and how it was found: `Found(tree=…, version="2.13.0", by="NPUCOMPOSE_TORCH_NPU")`."""

    tree: Path
    version: str
    by: str


def locate() -> Path:
    """The folder that holds `torch_npu/`, as in the unpacked wheel; it fits the torch that is installed here.

    Looked for in this order: NPUCOMPOSE_TORCH_NPU; a pip-installed torch_npu; the cache that `npucompose fetch` fills.
    ConfigError says what to type where there is none, and names both versions where it does not fit the torch here.
    """
    found = find()
    if found is None:
        raise ConfigError(
            f"no torch_npu here: it is not installed, and {cache_dir()} holds none. Type `{FETCH}`, "
            f"or set {TREE_VARIABLE} to the folder of an unpacked wheel, the one that holds torch_npu/."
        )
    if found.by == CACHE:
        _believe_all(found.tree, cache_dir().resolve())
    problem = torch_problem(found.tree)
    if problem:
        raise ConfigError(f"{problem} The wheel was found by {found.by}.")
    return found.tree


def version(tree: Path) -> str:
    """What torch_npu/version.py says, without importing it: "2.13.0", "2.9.0.post6"."""
    file = tree / _VERSION_FILE
    said = _VERSION.search(file.read_text(encoding="utf-8")) if file.is_file() else None
    if said is None:
        raise ConfigError(f"{tree} is not an unpacked torch_npu wheel: it has no {_VERSION_FILE} with a version.")
    return said.group(1)


def find() -> Found | None:
    """What `locate` would take, whether it fits the torch here or not; None where there is nothing. Of a cached tree
    only what says the version is read, and looked at: every experiment asks, and `locate` looks at all of it.
    """
    given = os.environ.get(TREE_VARIABLE)
    if given:
        return _given(Path(given).expanduser())
    return _installed() or _cached()


def cached_tree(version: str, python: str, architecture: str) -> Path:
    """Where `npucompose fetch` puts a wheel: `…/torch_npu/2.13.0-cp311-x86_64`."""
    return cache_dir() / "torch_npu" / f"{version}-cp{python.replace('.', '')}-{architecture}"


def this_python() -> str:
    """`3.11`"""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def this_architecture() -> str:
    """The wheel's word for this machine's: arm64 of macOS is aarch64, and AMD64 of Windows x86_64."""
    return "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"


def torch_wanted(tree: Path) -> str | None:
    """The torch that the wheel was built for, by its own metadata: "2.13.0"; None where it does not say."""
    for file in sorted(tree.glob("torch_npu-*.dist-info/METADATA")):
        said = _WANTS_TORCH.search(file.read_text(encoding="utf-8"))
        if said and file.parent.name == f"torch_npu-{version(tree)}.dist-info":
            return said.group(1).removesuffix(".*").partition("+")[0]
    return None


def torch_problem(tree: Path) -> str | None:
    """Why the wheel in `tree` cannot be used with the torch that is installed here, in a sentence."""
    wanted, here = torch_wanted(tree), installed_version("torch")
    if wanted is None or here is None or here.partition("+")[0] == wanted:
        return None
    return (
        f"torch_npu {version(tree)} was built for torch {wanted}, and torch {here} is installed here: "
        f"pip install torch=={wanted}, or name a wheel for torch {here.partition('+')[0]} with {TREE_VARIABLE}."
    )


def _given(tree: Path) -> Found:
    if (tree / _VERSION_FILE).is_file():
        return Found(tree=tree.resolve(), version=version(tree), by=TREE_VARIABLE)
    inside = " It is torch_npu/ itself: give the folder above it." if (tree / "version.py").is_file() else ""
    raise ConfigError(
        f"{TREE_VARIABLE}={tree} is not an unpacked torch_npu wheel: it holds no {_VERSION_FILE}.{inside} "
        f"Unset it and type `{FETCH}`, or give the folder that holds torch_npu/."
    )


def _installed() -> Found | None:
    """A pip-installed torch_npu, from its record of files. Importing it would need CANN."""
    try:
        file = Path(str(metadata.distribution("torch_npu").locate_file(_VERSION_FILE)))
    except metadata.PackageNotFoundError:
        return None
    if not file.is_file():
        return None
    tree = file.parents[1].resolve()
    return Found(tree=tree, version=version(tree), by="the installed distribution torch_npu")


def _cached() -> Found | None:
    """The best of the cache: what fits the torch here, then this Python, this architecture, then the newest."""
    root = cache_dir() / "torch_npu"
    trees = [tree for tree in root.glob("*-cp*-*") if (tree / _VERSION_FILE).is_file()]
    if not trees:
        return None
    best = max(trees, key=_fitness)
    _believe(private.doubt(best / _VERSION_FILE, cache_dir()), best)
    return Found(tree=best.resolve(), version=version(best), by=CACHE)


@cache
def _believe_all(tree: Path, root: Path) -> None:
    """Thousands of files, all of which may be imported: looked at once in a process, until they are believed."""
    _believe(private.doubt_within(tree, root), tree)


def _believe(doubt: private.Doubt | None, tree: Path) -> None:
    if doubt is not None:
        raise ConfigError(
            f"the torch_npu in {tree} is not believed: {doubt.words}. Type `{FETCH}` to have it anew, or set "
            f"{TREE_VARIABLE} to the folder of an unpacked wheel."
        )


def _fitness(tree: Path) -> tuple[bool, bool, bool, tuple[int, ...]]:
    _, python, architecture = tree.name.rsplit("-", 2)
    return (
        torch_problem(tree) is None,
        python == f"cp{this_python().replace('.', '')}",
        architecture == this_architecture(),
        tuple(int(n) for n in re.findall(r"\d+", version(tree))),
    )
