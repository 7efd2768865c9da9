"""Dialects: files of other projects as the facts that a script of theirs would give, and an experiment as such files;
what starts an engine, a command line or a script in which one stands, as the data of such a file.

Each is found by name like a pass or a model: an installed package's entry point in `npucompose.dialects`.
Knows none of their keys.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import attrs
from attrs import define, field, frozen

from npucompose.compose.check import check
from npucompose.compose.references import CLOSED, Environment
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError, unknown
from npucompose.recipe.compilations import Facts
from npucompose.recipe.values import NO_CALL, CompileCall, Config, Const
from npucompose.recipe.vendor_options import Package, Unread, set_option
from npucompose.registry import Registry
from npucompose.schema.experiment import Experiment
from npucompose.table.structure import flat
from npucompose.vendor.option_specs import shown

NO_TEXTS: Mapping[str, str] = {}
VLLM_ASCEND = "vllm-ascend"


@define(kw_only=True)
class Settings:
    """A file while it is read: every key is used by a dialect, or named at the end."""

    flat: dict[str, Any]
    facts: Facts = field(factory=Facts)
    notes: list[str] = field(factory=list)
    eager: bool = False
    section: str = ""
    """Where the dialect's own keys stand: `additional_config`; empty for the top of the file."""
    version: str | None = None
    """Of the dialect's package, where one is said, and `version_from` by what."""
    version_from: str = ""
    tree: dict[str, Any] = field(factory=dict)
    """Sections of an experiment that a dialect says itself; with `mode` among them TorchAir's are not asked."""

    def take(self, *keys: str, default: Any = None) -> Any:
        """The value of the first of these keys that is there.

        A key is said with its sections (`torchair_graph_config.enabled`), from that of the dialect's own keys or from
        one around it: a key of the same name in another section is another key.
        """
        path = next((path for key in keys for path in self._places(key) if path in self.flat), None)
        return default if path is None else self.flat.pop(path)

    def there(self, section: str) -> bool:
        """Whether a key, or a section with any key, is there."""
        return any(f"{path}.".startswith(f"{place}.") for place in self._places(section) for path in self.flat)

    def _places(self, key: str) -> Iterator[str]:
        """`a.b.key`, `a.key` and `key`, where the dialect's own keys stand in `a.b`."""
        sections = self.section.split(".") if self.section else []
        for depth in range(len(sections), -1, -1):
            yield ".".join((*sections[:depth], key))

    def line(self, code: str, why: str) -> None:
        self.facts.unread.append(Unread(line=0, code=code, why=why))

    def compiles(
        self, package: Package, options: Mapping[str, Any], *, mode: str = "", dynamic: Any, cached: Any, at: str
    ) -> None:
        config = Config(package=package)
        found: dict[str, Any] = {}
        for path, value in {**({"mode": mode} if mode else {}), **options}.items():
            if why := set_option(package, found, path, value):
                self.line(f"{at}: {path} = {shown(value)}", why)
        config.cells.update({path: Const(value=value) for path, value in found.items()})
        self.facts.configs.append(config)
        self.facts.compiles.append(
            CompileCall(
                package=package,
                config=config,
                dynamic=bool(dynamic),
                fullgraph=True,
                node=NO_CALL,
                cached=bool(cached),
                cells=config.cells,
            )
        )

    def model_keys(self, kinds: Mapping[str, str]) -> None:
        """Switches of a model's own code: a note for those that are on."""
        for name, kind in kinds.items():
            for path in [path for path in self.flat if path.rpartition(".")[2] == name]:
                value = self.flat.pop(path)
                if value:
                    self.facts.in_models.append((kind, f"{path}={shown(value)}", 0))
                else:
                    self.notes.append(f"{path}={shown(value)}: off, and nothing to say")

    def end(self) -> None:
        rest = [f"{path}={shown(value)}" for path, value in self.flat.items()]
        if rest:
            self.notes.append(f"not about compiling, and left out: {', '.join(rest)}")


@frozen(kw_only=True)
class Exported:
    """An experiment as the options of a project, and what of it has none there."""

    arguments: Sequence[str] = ()
    """The command line of the engine, behind the model's name."""
    additional_config: Mapping[str, Any] = field(factory=dict)
    compilation_config: Mapping[str, Any] = field(factory=dict)
    without_equivalent: Sequence[Mapping[str, str]] = ()
    """[{option, why}] of everything asked for that no key says."""
    sources: Mapping[str, str] = field(factory=dict)
    """{key: the file that says so}."""
    read_at: str = ""

    def as_dict(self) -> dict[str, Any]:
        said = attrs.asdict(self, filter=lambda field, _: field.name != "arguments")
        return {"command_line": shlex.join(self.arguments), **said}


class Dialect(ABC):
    """The settings of one project.

    Facts only, each with the file that says it; what a project's code does around a key (which options one switch sets)
    is part of what the key means. Keys that are not about compiling are named in one line, keys that a model's own code
    acts on in one note, and nothing is passed over.
    """

    name: ClassVar[str]
    files: ClassVar[str]
    """What its files are, for who gave another one; empty where a dialect of the same project says it."""
    keys: ClassVar[tuple[str, ...]]
    """A file that has one of these keys, at any depth, is read by it."""
    package: ClassVar[str] = ""
    """Name of the distribution whose version decides what the keys mean; empty where every version means the same."""
    priority: ClassVar[int] = 0
    """Of several dialects that know a key of a file, the one with the highest reads it."""

    @abstractmethod
    def read(self, settings: Settings) -> None:
        """Take the keys that say something, and put it into the facts, the unread lines and the notes."""


class ExportingDialect(Dialect):
    """One whose settings can also be written: `recipe export --to`."""

    @abstractmethod
    def export(self, experiment: Experiment) -> Exported:
        """What the project's settings can say of the experiment, and what they cannot."""


DIALECTS: Registry[type[Dialect]] = Registry(kind="dialect", base=Dialect, group="npucompose.dialects")


OUR_READER = "engines"
"""Of the package that few need: named where none is installed."""
READERS: Registry[FunctionType] = Registry(
    kind="reader of command lines", base=FunctionType, group="npucompose.command_lines", values=True
)
"""Functions of (text, name) whose result is a CommandLine; ConfigError for a text that is none."""


@frozen(kw_only=True)
class CommandLine:
    """`vllm serve M -cc.mode=3` is `data={"model_tag": "M", "compilation_config": {"mode": 3}}`."""

    data: dict[str, Any]
    """{option: its value; of one that is given by parts, a mapping}, in Python's spelling."""
    notes: tuple[str, ...] = ()
    """What of the text is read elsewhere."""
    unread: tuple[Unread, ...] = ()
    """What of it is not known, or says more than a recipe can."""


def read_command_line(text: str, name: str) -> CommandLine:
    """By the first reader that is installed; ConfigError says why not, and nothing of the text is run."""
    return READERS.get(next(iter(READERS.names()), OUR_READER))(text, name)


def flattened(data: Mapping[Any, Any]) -> dict[str, Any]:
    """{dotted key: value}; vLLM's own YAML names its options as its command line does: additional-config."""
    return flat({str(key).replace("-", "_"): value for key, value in data.items()})


def read(data: Any, name: str, vllm_ascend: str | None = None, texts: Mapping[str, str] = NO_TEXTS) -> Settings:
    """The facts of a file's data; ConfigError where it is none of the known dialects.

    `vllm_ascend` is that project's version where one is asked for; `texts` are files that may say one, {name: text}.
    """
    settings = Settings(flat=flattened(data) if isinstance(data, Mapping) else {})
    if not DIALECTS.names():
        DIALECTS.get(VLLM_ASCEND, name)  # refused with the package that has it
    dialects = sorted(DIALECTS.every().values(), key=lambda dialect: -dialect.priority)
    for dialect in dialects:
        sections = [at for key in dialect.keys if (at := _section_of(key, settings.flat)) is not None]
        if not sections:
            continue
        settings.section = min(sections, key=len)  # a word may be a key of an older version and stand in its section
        if vllm_ascend is not None and dialect.package != VLLM_ASCEND:
            raise ConfigError(f"--{VLLM_ASCEND} {vllm_ascend}: {name} holds settings of {dialect.name}.")
        if vllm_ascend is not None:
            settings.version, settings.version_from = vllm_ascend, f"--{VLLM_ASCEND}"
        elif dialect.package:
            settings.version, settings.version_from = _pinned(dialect.package, texts)
        dialect().read(settings)
        settings.end()
        return settings
    known = ", ".join(dialect.files for dialect in dialects if dialect.files)
    raise ConfigError(f"{name}: nothing found. Known are the files of {known}; a script ends in .py.")


def _section_of(key: str, flat: Mapping[str, Any]) -> str | None:
    """`a.b` where `a.b.key` or anything below it is there, and empty at the top."""
    for path in flat:
        before, found, _ = f".{path}.".partition(f".{key}.")
        if found:
            return before.removeprefix(".")
    return None


def _pinned(package: str, texts: Mapping[str, str]) -> tuple[str | None, str]:
    """(a version, who says it): `vllm-ascend==0.18.0` of requirements, `vllm-ascend:v0.18.0` of an image."""
    words = package.replace("-", "[-_]")
    pin = re.compile(rf"\b{words}\s*(?:==\s*|[:@]\s*)v?(\d+\.\d+\.\d+(?:rc\d+)?(?:\.post\d+)?)", re.IGNORECASE)
    found = ((said[1], name) for name, text in texts.items() if (said := pin.search(text)))
    return next(found, (None, ""))


def export(
    *overrides: str,
    to: str = VLLM_ASCEND,
    config_dirs: Sequence[str] = (),
    config_name: str = "config",
    environment: Environment = CLOSED,
) -> Exported:
    """`export("mode=npugraph_ex").additional_config` is {"ascend_compilation_config": {"enable_npugraph_ex": True}}."""
    exporting = {name: one for name, one in DIALECTS.every().items() if issubclass(one, ExportingDialect)}
    if to not in exporting:
        raise ConfigError(unknown("project", to, tuple(exporting), "--to"))
    composed = compose(overrides, config_dirs=config_dirs, config_name=config_name, environment=environment)
    return exporting[to]().export(check(composed).experiment)
