"""The native replayer's extension: compiled once for each torch of a machine, then loaded from the user's cache.

Where it lies follows from its sources, from torch and from Python, so what was built for others is never loaded; nor is
what others could have written there (`npucompose.private`). Asking for its state loads no torch.

A wheel for one platform carries the extension for one torch and one Python (`prebuilt`, made by `make dist`). Where it
fits what is installed it is taken, and no compiler is needed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Literal

from attrs import frozen

from npucompose import private
from npucompose.activity import beside
from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler
from npucompose_replay.executor import onednn_functions
from npucompose_replay.executor.compiling import FLAGS, NAME, SOURCES, UNITS, CompilerFailed, compile_in
from npucompose_replay.executor.held_kernels import HELD

PREBUILT = Path(__file__).with_name("prebuilt")
"""What a wheel carries; a checkout has none."""
BUILT_WITH = "built with the headers of torch "
"""What the extension says in its bytes, before a version."""
BUILDING = "building the native replayer, once for this torch"
WORK = "building-"
"""How the name begins of the folder in which a build works."""


class Unavailable(Exception):
    """There is no native replayer here; the text says why and what is possible, in one paragraph."""

    @property
    def line(self) -> str:
        return in_one_line(str(self))


@frozen(kw_only=True)
class BuildState:
    """What is in the cache for the torch that is installed."""

    kind: Literal["built", "not built", "failed", "impossible"]
    words: str


def in_one_line(words: str) -> str:
    """The reason and the first thing that a compiler complains about."""
    first, *said = words.splitlines()
    return f"{first} {said[0]} (`npucompose doctor` shows all)" if said else first


def state() -> BuildState:
    """Look, do not build. `failed` carries the compiler's own words. What is loaded is not looked at again."""
    if load.cache_info().currsize:
        return BuildState(kind="built", words=str(load().__file__))
    try:
        place, carried = folder(), _carried()
    except Unavailable as error:
        return BuildState(kind="impossible", words=str(error))
    if carried:
        return BuildState(kind="built", words=str(carried))
    if (doubt := _doubt(place)) and not doubt.mine:
        return BuildState(kind="impossible", words=_not_believed(doubt))
    if _is_whole(place):
        return BuildState(kind="built", words=str(_extension(place)))
    found = compiler()
    if found is None:
        return BuildState(kind="impossible", words=_no_compiler())
    complaint = _remembered_failure(place, found)
    if complaint is not None:
        return BuildState(kind="failed", words=complaint)
    again = f"{doubt.words}, so what is there is not believed: " if doubt else ""
    words = f"{again}the first run builds it, once, in about half a minute, while it traces the model"
    return BuildState(kind="not built", words=words)


def start() -> None:
    """Build what is missing in a thread, beside the caller's work. `load` waits for it, and says why it failed."""
    if state().kind == "not built":
        threading.Thread(target=_build_beside, name="native replayer", daemon=True).start()


def _build_beside() -> None:
    with beside(BUILDING), contextlib.suppress(Unavailable):
        file()


@functools.cache
def load() -> ModuleType:
    """The extension's module, built first where it has to be. Raises Unavailable; asked again, it answers at once."""
    place = folder()
    if carried := _carried():
        with contextlib.suppress(ImportError):  # made on a machine with a newer C library than this one's
            return _loaded(carried)
    try:
        return _loaded(_built(place))
    except ImportError:
        # Of another torch, whatever its name says: once more, from the sources.
        _digest(place).unlink(missing_ok=True)
    try:
        return _loaded(_built(place))
    except ImportError as error:
        raise Unavailable(f"the native replayer was built and cannot be loaded: {error}") from error


def file() -> Path:
    """The extension's file, built first where it has to be, and not loaded. Raises Unavailable."""
    return _carried() or _built(folder())


def folder() -> Path:
    """Where the extension for this torch, Python and source belongs: `…/native/torch-2.13.0+cpu-cp311-x86_64-0a1b…`."""
    library = _library()
    return cache_dir() / "native" / _place_name(library, library.stat().st_mtime_ns)


def prebuilt() -> Path:
    """Where a wheel carries it for this torch, Python and source; times are an installation's own, so none counts."""
    return PREBUILT / _place_name(_library())


def _library() -> Path:
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"the native replayer is built on Linux only; this is {sys.platform}.")
    library = _torch() / "lib" / "libtorch_cpu.so"
    if not library.is_file():
        raise Unavailable(f"the native replayer links to {library}, which is not there.")
    return library


HEAD = 1 << 16
"""Bytes at the beginning of a library in which the linker says which one it is (`.note.gnu.build-id`)."""


def _place_name(library: Path, *times: int) -> str:
    """What tells one file of torch from another: its size and its head, and where it stays put its time."""
    version = metadata.version("torch")
    abi = sysconfig.get_config_var("SOABI")
    numbers = (library.stat().st_size, *times)
    tables = (repr(HELD), repr(UNITS), repr(onednn_functions.FUNCTIONS))
    identity = [version, str(abi), platform.machine(), *map(str, numbers), *FLAGS, *tables]
    digest = hashlib.sha256("\0".join(identity).encode())
    with library.open("rb") as opened:
        digest.update(opened.read(HEAD))
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"torch-{version}-{python}-{platform.machine()}-{digest.hexdigest()[:12]}"


def _torch() -> Path:
    """Where torch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unavailable("torch is not installed.")
    return Path(spec.origin).parent


def _extension(place: Path) -> Path:
    return place / f"{NAME}.so"


def _digest(place: Path) -> Path:
    return place / f"{NAME}.sha256"


def _doubt(place: Path) -> private.AccessDoubt | None:
    """Whether somebody else could have written what lies there."""
    found = (private.doubt(file, cache_dir()) for file in (_extension(place), _digest(place), _failure(place)))
    return next((doubt for doubt in found if doubt), None)


def _not_believed(doubt: private.AccessDoubt) -> str:
    return (
        f"the native replayer is not taken from a cache that others can write: {doubt.words}. "
        f"Set {CACHE_VARIABLE} to a folder of your own."
    )


def _is_whole(place: Path) -> bool:
    """Whether the extension is there, every byte of it, and ours."""
    return not _doubt(place) and _is_intact(place)


def _carried() -> Path | None:
    """What the wheel carries, where it fits; who can write there can write this very file."""
    if not PREBUILT.is_dir():
        return None
    place = prebuilt()
    return _extension(place) if _is_intact(place) else None


def _is_intact(place: Path) -> bool:
    """Every byte of an extension for this torch: loading half a file kills the process."""
    file, digest = _extension(place), _digest(place)
    if not (file.is_file() and digest.is_file()):
        return False
    content = file.read_bytes()
    mine = f"{BUILT_WITH}{_release(metadata.version('torch'))}\0".encode()
    return hashlib.sha256(content).hexdigest().encode() == digest.read_bytes() and mine in content


_LOADING = threading.Lock()
"""As `import` has one for each module: a second thread would be given the module as far as the first has filled it."""


def _loaded(file: Path) -> ModuleType:
    """ImportError where the file is no extension for the torch of this process."""
    import torch

    spec = importlib.util.spec_from_file_location(
        NAME, file, loader=importlib.machinery.ExtensionFileLoader(NAME, str(file))
    )
    assert spec is not None
    assert spec.loader is not None
    with _LOADING:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    mine, theirs = _release(torch.__version__), module.torch_version
    if mine != theirs:
        raise ImportError(f"{file} was {BUILT_WITH}{theirs}, and this is torch {mine}")
    return module


def _release(version: str) -> str:
    """`2.13.0` of `2.13.0+cpu` and of `2.13.0.dev20260101`: what torch's headers know of it."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0] if found else version


def _built(place: Path) -> Path:
    if _is_whole(place):
        return _extension(place)
    doubt = _doubt(place)
    if doubt and not doubt.mine:
        raise Unavailable(_not_believed(doubt))
    try:
        if doubt:
            _forget(place)  # before it is closed: from then on it would be believed
        private.make(place, cache_dir())
        if doubt:
            _forget(place)
        with _alone(place / "lock"):
            return _extension(place) if _is_whole(place) else _build(place)
    except OSError as error:
        raise Unavailable(f"the native replayer cannot be kept in {place}: {error}") from error


def _forget(place: Path) -> None:
    for file in (_digest(place), _extension(place), _failure(place), place / "lock"):
        file.unlink(missing_ok=True)


def _build(place: Path) -> Path:
    found = compiler()
    if found is None:
        raise Unavailable(_no_compiler())
    complaint = _remembered_failure(place, found)
    if complaint is not None:
        raise Unavailable(complaint)
    torch = metadata.version("torch")
    print(f"npucompose: building the native replayer for torch {torch} with {found}, once …", file=sys.stderr)
    begun = time.monotonic()
    for left in place.glob(f"{WORK}*"):  # by a process that ended within its build: nobody else builds now
        shutil.rmtree(left, ignore_errors=True)
    with beside(BUILDING), tempfile.TemporaryDirectory(dir=place, prefix=WORK) as work:
        try:
            made = compile_in(Path(work), found, _library())
        except CompilerFailed as error:
            _put(f"{found}\n{error}", _failure(place), Path(work))
            raise Unavailable(str(error)) from None
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        made.chmod(0o700)
        os.replace(made, _extension(place))
        _put(digest, _digest(place), Path(work))
    print(f"npucompose: built in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return _extension(place)


def _put(text: str, file: Path, work: Path) -> None:
    """Written beside it and moved there: it is there whole or not at all, and its owner's alone."""
    made = work / file.name
    made.write_text(text, encoding="utf-8")
    made.chmod(0o600)
    os.replace(made, file)


def _failure(place: Path) -> Path:
    return place / "failure.txt"


def _remembered_failure(place: Path, found: str) -> str | None:
    """What the same compiler said last time: building fails once, not at every start."""
    file = _failure(place)
    if not file.is_file() or _doubt(place):
        return None
    try:
        tried, _, complaint = file.read_text(encoding="utf-8").partition("\n")
    except UnicodeDecodeError:  # not as it was written: try again
        return None
    return f"{complaint}\nRemove {file} to try again." if tried == found else None


def _no_compiler() -> str:
    words = "no C++ compiler is installed (g++, c++, clang++, or what CXX names): the native replayer needs one, once."
    carried = sorted(place.name for place in PREBUILT.glob("torch-*"))
    if not carried:
        return words
    if prebuilt().name in carried:
        return f"{words} The one that this package carries cannot be loaded: it is damaged, or its C library is newer."
    return f"{words} The one that this package carries is for {carried[0].rpartition('-')[0]} and does not fit here."


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process builds, the others wait for it."""
    import fcntl

    with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
