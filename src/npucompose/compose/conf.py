"""Where the YAML lies, the packaged `conf/` and the folders that a person adds, and where in it a value that is wrong
stands: its file and line, beside the sentence about it. Loads no Hydra, knows no option.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import Any

from npucompose.errors import ConfigError, shown_path
from npucompose.input_safety import read_text
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


ABOUT = re.compile(
    r"(?:unknown key )?'(?P<name>[\w.-]+)'(?:.* @ (?P<section>[\w.-]*\w)(?=[.\s]|$))?"
    r"|(?P<path>\w+(?:\.\w+)+)=(?:.*?)(?= has no effect| takes effect only| has no meaning)",
    re.DOTALL,
)
"""How a sentence about a value begins: `'seed' must be …`, `unknown key 'x' @ benchmark`, `a.b=3 has no effect`."""


@contextmanager
def located(provenance: Mapping[str, str], files: Mapping[str, str]) -> Iterator[None]:
    """Each sentence of a ConfigError about a value that a file says gets `(mine/experiment/x.yaml:3)`.

    `provenance` is that of a Composed, `files` where each of its `conf/….yaml` lies.
    """
    try:
        yield
    except ConfigError as error:
        problems = tuple(_with_place(problem, provenance, files) for problem in error.problems)
        if problems == error.problems:
            raise
        raise ConfigError(*problems) from error.__cause__


def _with_place(problem: str, provenance: Mapping[str, str], files: Mapping[str, str]) -> str:
    about = ABOUT.match(problem)
    if about is None:
        return problem
    path = about["path"] or ".".join(filter(None, (about["section"], about["name"])))
    said_by = provenance.get(path) or next((by for p, by in provenance.items() if p.startswith(f"{path}.")), "")
    place = _place(path, said_by, files)
    if place is None or (place == said_by and about["path"] is None):
        return problem
    place = f" ({place})"
    if about["section"] is about["path"] is None:
        return f"{problem.rstrip('.')}{place}."
    return f"{about[0]}{place}{problem[about.end() :] or '.'}"


def _place(path: str, said_by: str, files: Mapping[str, str]) -> str | None:
    """`mine/experiment/x.yaml:3`; of a packaged choice who chose it: `conf/tiling/sink.yaml, chosen on …`."""
    file = files.get(said_by.partition(",")[0])
    if file is None or Path(file).is_relative_to(conf_dir()):
        return said_by if said_by.startswith("conf/") else None
    line = line_of(file, path.split("."))
    return f"{shown_path(file)}{f':{line}' if line else ''}"


def line_that_names(file: str, *words: str) -> str:
    """`mine/experiment/x.yaml:3`: the first line of a file that has all the words; the file alone where none has."""
    lines = read_text(Path(file), named=True).splitlines()
    number = next((n for n, line in enumerate(lines, 1) if all(word in line for word in words)), None)
    return f"{shown_path(file)}{f':{number}' if number else ''}"


def line_of(file: str, path: Sequence[str]) -> int | None:
    """The line of a key in a YAML file, whose content may lie below a package: any end of `path` is looked for."""
    import yaml

    try:
        root = yaml.compose(read_text(Path(file), named=True), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, OSError, ValueError):
        return None
    found = (_line(root, path[start:]) for start in range(len(path)))
    return next((line for line in found if line), None)


def _line(node: Any, path: Sequence[str]) -> int | None:
    line = None
    for part in path:
        pairs = node.value if getattr(node, "id", "") == "mapping" else ()
        key, node = next(((k, v) for k, v in pairs if k.value == part), (None, None))
        if key is None:
            return None
        line = key.start_mark.line + 1
    return line
