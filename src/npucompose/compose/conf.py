"""Where the YAML lies: the packaged `conf/`, and the folders that a person adds. Loads no Hydra."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError
from npucompose.registry import Registry, installed, package_of

WITHOUT_YAML: Mapping[str, str] = {
    "target": "npucompose.targets:TARGETS", "model": "npucompose.models:MODELS", "passes": "npucompose.passes:PASSES",
}  # fmt: skip
"""{group in which a name that is registered needs no file: its registry, which is imported when it is asked for}."""
REGISTERED = "registered://"
"""Where choices lie that have no file."""


def registry_of(group: str) -> Registry[Any]:
    """Of a group in WITHOUT_YAML."""
    return pkgutil.resolve_name(WITHOUT_YAML[group])


def conf_dir() -> Path:
    """The packaged conf/: inside the installed package, or beside src/ in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parents[1] / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"no conf/config.yaml in {package} nor beside its checkout: the installation is incomplete.")


def added_dirs(dirs: Sequence[str]) -> tuple[Path, ...]:
    """A person's --config-dir folders, checked."""
    return tuple(_folder(given) for given in dirs)


def _folder(given: str) -> Path:
    try:
        path = Path(expanduser(given)).resolve()
        if path.is_dir():
            return path
    except (OSError, ValueError, RuntimeError) as error:  # too long, a loop of links
        raise ConfigError(f"--config-dir {given}: {getattr(error, 'strerror', None) or error}.") from None
    raise ConfigError(f"--config-dir {given}: no such folder.")


def installed_dirs() -> dict[Path, str]:
    """{conf/ of an installed package: the package}: each names the module beside whose file, or in which, it lies."""
    found: dict[Path, str] = {}
    for point in installed("npucompose.conf").values():
        with suppress(ImportError, ValueError):
            spec = find_spec(point.value)
            if spec is not None and spec.origin is not None and (folder := Path(spec.origin).parent / "conf").is_dir():
                found[folder] = package_of(point)
    return found


def choices_of(group: str, dirs: Sequence[Path] = ()) -> tuple[str, ...]:
    """The names of the YAML files of a group, over all folders, and those that need none."""
    folders = (*dirs, conf_dir(), *installed_dirs())
    registered = registry_of(group).names() if group in WITHOUT_YAML else ()
    return tuple(sorted({file.stem for folder in folders for file in files_of(folder / group)} | {*registered}))


def files_of(group: Path) -> list[Path]:
    """The YAML files of a folder by name; what is no file (a pipe, a device) is no choice."""
    return sorted(file for file in group.glob("*.yaml") if file.is_file())
