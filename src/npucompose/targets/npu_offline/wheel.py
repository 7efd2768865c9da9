"""The unpacked torch_npu wheel: found and never imported; fetched by `npucompose fetch torch_npu`. Loads no torch.

A pinned wheel is downloaded with pip, verified and unpacked into the cache. It is for another platform as often as not
(a Linux wheel on a Mac, another Python): nothing of it is installed. Its shared libraries, four fifths of it, need CANN
and are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import frozen

from airflow_free.fresh_python import module_command
from npucompose import private
from npucompose.errors import ConfigError, FetchError, listed, unknown
from npucompose.machine import CACHE_VARIABLE, cache_dir, installed_version
from npucompose.vendor.versions import order_of

TREE_VARIABLE = "NPUCOMPOSE_TORCH_NPU"
CACHE = "the cache"
FETCH = "npucompose fetch torch_npu"

_VERSION_FILE = Path("torch_npu") / "version.py"
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_WANTS_TORCH = re.compile(r"^Requires-Dist:\s*torch\s*\(?\s*==\s*([0-9][^\s;)]*)", re.MULTILINE)


@frozen(kw_only=True)
class UnpackedWheel:
    """How one was found: `UnpackedWheel(tree=…, version="2.13.0", by="NPUCOMPOSE_TORCH_NPU")`."""

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


def find() -> UnpackedWheel | None:
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


def _given(tree: Path) -> UnpackedWheel:
    if (tree / _VERSION_FILE).is_file():
        return UnpackedWheel(tree=tree.resolve(), version=version(tree), by=TREE_VARIABLE)
    inside = " It is torch_npu/ itself: give the folder above it." if (tree / "version.py").is_file() else ""
    raise ConfigError(
        f"{TREE_VARIABLE}={tree} is not an unpacked torch_npu wheel: it holds no {_VERSION_FILE}.{inside} "
        f"Unset it and type `{FETCH}`, or give the folder that holds torch_npu/."
    )


def _installed() -> UnpackedWheel | None:
    """A pip-installed torch_npu, from its record of files. Importing it would need CANN."""
    try:
        file = Path(str(metadata.distribution("torch_npu").locate_file(_VERSION_FILE)))
    except metadata.PackageNotFoundError:
        return None
    if not file.is_file():
        return None
    tree = file.parents[1].resolve()
    return UnpackedWheel(tree=tree, version=version(tree), by="the installed distribution torch_npu")


def _cached() -> UnpackedWheel | None:
    """The best of the cache: what fits the torch here, then this Python, this architecture, then the newest."""
    root = cache_dir() / "torch_npu"
    trees = [tree for tree in root.glob("*-cp*-*") if (tree / _VERSION_FILE).is_file()]
    if not trees:
        return None
    best = max(trees, key=_fitness)
    _believe(private.doubt(best / _VERSION_FILE, cache_dir()), best)
    return UnpackedWheel(tree=best.resolve(), version=version(best), by=CACHE)


@cache
def _believe_all(tree: Path, root: Path) -> None:
    """Thousands of files, all of which may be imported: looked at once in a process, until they are believed."""
    _believe(private.doubt_within(tree, root), tree)


def _believe(doubt: private.AccessDoubt | None, tree: Path) -> None:
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


DEFAULT_VERSION = "2.13.0"
"""The version on which execution is proven."""
PINS = Path(__file__).with_name("wheels.json")
"""{version: {Python: {architecture: {file, sha256}}}} of wheels on PyPI; docs/options.md says how it is made."""
TIME_LIMIT_S = 900.0
OTHERS = "Any other version of pip's index is taken as well, written out: 2.10.0, 2.12.0.post3."


@frozen(kw_only=True)
class Pin:
    """One wheel on PyPI, and what its bytes have to be."""

    version: str
    python: str
    architecture: str
    file: str | None
    sha256: str | None
    """None, as the file: no pin of ours; pip chooses the file and holds it against the index's own hash."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags in the wheel's name: `("manylinux_2_28_x86_64",)`; without a name all there are."""
        if self.file is None:
            return tuple(f"{tag}_{self.architecture}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"))
        return tuple(self.file.removesuffix(".whl").split("-")[-1].split("."))


def pinned(
    version: str = DEFAULT_VERSION, python: str | None = None, architecture: str | None = None, pins: Path = PINS
) -> Pin:
    """The wheel for this Python and architecture (this machine's where none is named).

    A version that is not pinned is asked of pip's index as it is written. ConfigError for what is no version, and where
    a pinned version has no wheel for this Python or architecture.
    """
    table: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(pins.read_text(encoding="utf-8"))
    python, architecture = python or this_python(), architecture or this_architecture()
    if version not in table:
        if order_of(version) == order_of(""):
            raise ConfigError(f"{unknown('torch_npu version', version, tuple(table), where='--version')} {OTHERS}")
        return Pin(version=version, python=python, architecture=architecture, file=None, sha256=None)
    if python not in table[version]:
        raise ConfigError(
            f"no wheel of torch_npu {version} is pinned for Python {python}; there are wheels for Python "
            f"{listed(table[version])}. Add --python: on target=npu_offline only the Python files of a wheel are read."
        )
    if architecture not in table[version][python]:
        raise ConfigError(
            f"no wheel of torch_npu {version} for Python {python} is pinned for {architecture}; "
            f"there are: {listed(table[version][python])}. Add --platform."
        )
    return Pin(version=version, python=python, architecture=architecture, **table[version][python][architecture])


def fetch(pin: Pin) -> tuple[Path, bool]:
    """The wheel's tree in the cache, and whether it was there already: only what is not there is downloaded. A tree is
    there whole or not at all."""
    tree = cached_tree(pin.version, pin.python, pin.architecture)
    doubt = private.doubt_within(tree, cache_dir())
    if doubt and not doubt.mine:
        raise FetchError(f"{doubt.words}: set {CACHE_VARIABLE} to a folder of your own.")
    if not doubt and (tree / _VERSION_FILE).is_file():
        return tree, True
    try:
        private.make(tree.parent, cache_dir())
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=tree.parent) as folder:
            wheel = _downloaded(pin, Path(folder))
            _verify(wheel, pin)
            whole = Path(folder) / "tree"
            unpack(wheel, whole)
            private.close(whole)
            if version(whole) != pin.version:
                raise FetchError(f"{wheel.name} says of itself that it is torch_npu {version(whole)}.")
            _put(whole, tree, instead=doubt is not None)
    except OSError as error:
        raise FetchError(f"torch_npu {pin.version} cannot be unpacked into {tree.parent}: {error}.") from error
    return tree, False


MOST_UNPACKED = 2**31
"""Of a wheel without its libraries: torch_npu 2.13.0 has 40 MB."""


def unpack(wheel: Path, into: Path) -> None:
    """Extract a wheel but for shared libraries; FetchError before anything is written if a name leads out of `into`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            outside = [name for name in archive.namelist() if _leads_out(name)]
            if outside:
                raise FetchError(f"{wheel.name} has names that lead out of its folder: {listed(outside[:3])}.")
            wanted = [part for part in archive.infolist() if not _is_library(part.filename)]
            if (size := sum(part.file_size for part in wanted)) > MOST_UNPACKED:
                raise FetchError(f"{wheel.name} unpacks to {size:,} bytes; at most {MOST_UNPACKED:,} are.")
            archive.extractall(into, wanted)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} is not a wheel: {error}.") from error


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]


def _is_library(name: str) -> bool:
    return name.endswith(".so") or ".so." in PurePosixPath(name).name


def _downloaded(pin: Pin, folder: Path) -> Path:
    command = module_command(
        "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--retries", "2", "--no-deps", "--only-binary", ":all:", "--implementation", "cp",
        "--python-version", pin.python, "--abi", f"cp{pin.python.replace('.', '')}",
        *(f"--platform={tag}" for tag in pin.platforms), "--dest", str(folder), f"torch_npu=={pin.version}",
    )  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip had not downloaded torch_npu {pin.version} after {TIME_LIMIT_S:g} s.") from None
    wheels = sorted(folder.glob("torch_npu-*.whl")) if pin.file is None else [folder / pin.file]
    if ran.returncode == 0 and wheels and wheels[0].is_file():
        return wheels[0]
    if ran.returncode == 0:
        names = listed(sorted(file.name for file in folder.iterdir())) or "nothing"
        raise FetchError(f"pip was asked for {pin.file} and downloaded {names}.")
    there = _there(ran.stderr)
    if pin.file is None and there:
        raise ConfigError(
            f"{unknown('torch_npu version', pin.version, there, where='--version')} These are what pip's index has for "
            f"Python {pin.python} on {pin.architecture}."
        )
    wanted = pin.file or f"torch_npu {pin.version} for Python {pin.python} on {pin.architecture}"
    raise FetchError(f"pip cannot download {wanted}: {_said(ran.stderr)} {_advice(ran.stderr)}")


def _there(stderr: str) -> tuple[str, ...]:
    """The versions that pip's index has, newest last, in pip's own words."""
    said = re.search(r"\(from versions: ([^)]*)\)", stderr)
    names = [] if said is None or said[1] == "none" else said[1].split(", ")
    return tuple(name for name in names if order_of(name) != order_of(""))


def _said(stderr: str) -> str:
    """pip's last error line, which is the one that says why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = re.sub(r" \(from versions: .*\)", "", (errors or lines or ["it said nothing"])[-1])
    return said if said.endswith(".") else f"{said}."


def _advice(stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"Type `{sys.executable} -m ensurepip`, then `{FETCH}` again."
    return (
        f"Is there a network, and does pip's index have torch_npu? Behind a mirror set PIP_INDEX_URL; "
        f"with the file at hand set PIP_FIND_LINKS to its folder; then `{FETCH}` again."
    )


def _verify(wheel: Path, pin: Pin) -> None:
    if pin.sha256 is None:
        return
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != pin.sha256:
        raise FetchError(
            f"{pin.file} is not the file that was pinned: its sha256 is {digest}, wanted is {pin.sha256}. "
            "Nothing was unpacked. Ask whoever runs the index that pip uses."
        )


def _put(whole: Path, tree: Path, *, instead: bool) -> None:
    """Rename into place. Another process may have been faster: its tree is as good, for the hash was the same; unless
    it is to go there `instead` of one that is not believed."""
    if tree.exists() and (instead or not (tree / _VERSION_FILE).is_file()):
        shutil.rmtree(tree)
    try:
        os.rename(whole, tree)
    except OSError:
        if not (tree / _VERSION_FILE).is_file():
            raise
