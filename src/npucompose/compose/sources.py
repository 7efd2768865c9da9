"""Where choices lie: the packaged `conf/`, a person's folders, installed packages, names without a file. Loads Hydra.

Each file is read once, to plain data. Hydra is handed its defaults list, and of files that came with a package what
they say of Hydra; values never pass through it.
"""

from __future__ import annotations

import argparse
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen
from hydra import version
from hydra._internal.config_loader_impl import (  # `initialize` is for one a process
    ConfigLoaderImpl,
    get_overrides_dirname,
)
from hydra._internal.utils import create_config_search_path, get_args_parser  # `hydra.main` parses sys.argv and exits
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import OmegaConf, flag_override

from npucompose.compose.conf import REGISTERED, WITHOUT_YAML, conf_dir, files_of, installed_dirs, registry_of
from npucompose.compose.overrides import parsed_overrides, translate_hydra_errors
from npucompose.compose.references import CLOSED, Environment, escaped
from npucompose.compose.untrusted_config import EXPERIMENT, GLOBAL, LIMITS, includes, read_foreign, yaml_resolvers
from npucompose.errors import ConfigError
from npucompose.input_safety import plain_data, read_text
from npucompose.models import MODELS
from npucompose.table.structure import facts_of, structure

MOST_FILES = 1_000
"""Of one defaults list, a file counted each time that it is named."""
DEEPEST = 50


@frozen(kw_only=True)
class Choice:
    """What one file says, and who brought it."""

    values: Mapping[str, Any]
    defaults: Sequence[Any] = ()
    hydra: Mapping[str, Any] | None = None
    package: str | None = None
    """Where the values lie, as the header says it."""
    provider: str
    file: Path | None = None


class Source(ConfigSource):
    """A place of choices, as Hydra asks for it."""

    @abstractmethod
    def choice(self, config_path: str) -> Choice:
        """Of `mode/eager`, which is there."""

    def __deepcopy__(self, memo: Any) -> Source:
        return self  # Hydra copies its places before each composition, and changes none of ours

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        found = self.choice(config_path)
        said = {**dict.fromkeys(found.values), "defaults": [*found.defaults], "hydra": found.hydra}
        # an experiment lies at the top, whether its header says so or not: JSON has no comments
        package = found.package or (GLOBAL if config_path.startswith(f"{EXPERIMENT}/") else None)
        return ConfigResult(
            config=OmegaConf.create({key: value for key, value in said.items() if key != "hydra" or value}),
            path=self.full_path(),
            provider=self.provider,
            header={"package": package},
        )


class Folder(Source):
    """The YAML of a package, the file of a choice named by its group and its name."""

    def __init__(self, provider: str, folder: Path) -> None:
        super().__init__(provider, f"file://{folder}")
        self.read: dict[str, Choice] = {}

    @staticmethod
    def scheme() -> str:
        return "file"

    def is_group(self, config_path: str) -> bool:
        return os.path.isdir(os.path.join(self.path, config_path))

    def is_config(self, config_path: str) -> bool:
        return os.path.isfile(self.file_of(config_path))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        folder = Path(self.path, config_path)
        groups = [one.name for one in folder.iterdir() if one.is_dir()]
        choices = [file.stem for file in files_of(folder)]
        found = {ObjectType.GROUP: groups, ObjectType.CONFIG: choices, None: groups + choices}
        return sorted(found[results_filter])

    def file_of(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))

    def choice(self, config_path: str) -> Choice:
        if config_path not in self.read:
            file = self.file_of(config_path)
            content, package = self.content(file, config_path)
            values = {key: value for key, value in content.items() if key not in ("defaults", "hydra")}
            self.read[config_path] = Choice(
                values=values,
                defaults=content.get("defaults") or (),
                hydra=content.get("hydra"),
                package=package,
                provider=self.provider,
                file=file,
            )
        return self.read[config_path]

    def content(self, file: Path, config_path: str) -> tuple[dict[Any, Any], str | None]:
        """(what the file holds, the package that its header names)."""
        text = read_text(file, named=True)
        content = plain_data(text, str(file), LIMITS, yaml_resolvers())
        return content or {}, self._get_header_dict(text)["package"]


class PersonsFolder(Folder):
    """The YAML below a folder that did not come with a package."""

    def __init__(self, provider: str, folder: Path, files: Files) -> None:
        super().__init__(provider, folder)
        self.files = files

    def content(self, file: Path, config_path: str) -> tuple[dict[Any, Any], str | None]:
        root, file = Path(self.path).resolve(), file.resolve()
        if not file.is_relative_to(root):
            raise ConfigError(f"'{config_path}' lies outside of the folder {root.name} that --config-dir names.")
        return read_foreign(file, config_path, self.files.is_known_group, self.files.environment)

    def load_config(self, config_path: str) -> ConfigResult:
        self.files.count(config_path)
        return super().load_config(config_path)


class Registered(Source):
    """A choice of every target, model and pass that has no file: its name, and every option at its default."""

    def __init__(self) -> None:
        super().__init__("registered", REGISTERED)

    @staticmethod
    def scheme() -> str:
        return "registered"

    def is_group(self, config_path: str) -> bool:
        return config_path in WITHOUT_YAML

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return group in WITHOUT_YAML and name in registry_of(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return [*registry_of(config_path).names()]

    def choice(self, config_path: str) -> Choice:
        group, _, name = config_path.rpartition("/")
        content = {name: {}} if group == "passes" else {"name": name}
        return Choice(values=content, provider=registry_of(group).package(name))


class Files:
    """All places, the first that has a choice has the say."""

    def __init__(self, config_dirs: Sequence[Path] = (), environment: Environment = CLOSED) -> None:
        """`environment` holds the variables that files of the person's own may read."""
        self.environment = environment
        own = Folder("main", conf_dir())
        theirs = [PersonsFolder("command-line", folder, self) for folder in config_dirs]
        installed = [Folder(package, folder) for folder, package in installed_dirs().items()]
        self.packaged: list[Source] = [own, *installed, Registered()]
        self.sources: list[Source] = [own, *theirs, *self.packaged[1:]]
        self.counted: dict[str, int] = {}

    def find(self, config_path: str) -> Choice | None:
        """Of `mode/eager`."""
        return next((one.choice(config_path) for one in self.sources if one.is_config(config_path)), None)

    def is_known_group(self, group: str) -> bool:
        """Of the package or an installed extension."""
        return any(source.is_group(group) for source in self.packaged)

    def named_by(self, config_path: str) -> list[str]:
        """`passes/cse` for each choice in the defaults list of a file."""
        found, group = self.find(config_path), config_path.rpartition("/")[0]
        listed = includes(found.defaults if found is not None else (), group)
        paths = (choice[1:] if choice[:1] == "/" else f"{at.partition('@')[0]}/{choice}" for _, at, choice in listed)
        return [path.lstrip("/") for path in paths if path.rpartition("/")[2] not in ("", "_self_")]

    def count(self, config_path: str, above: tuple[str, ...] = ()) -> int:
        """How many files the defaults list of one asks for; Hydra would follow it without end."""
        if config_path in above or len(above) > DEEPEST:
            way = " -> ".join([*above[-3:], config_path])
            raise ConfigError(f"the defaults lists lead from file to file without end: {way}.")
        if config_path not in self.counted:
            inside = [self.count(path, (*above, config_path)) for path in self.named_by(config_path)]
            self.counted[config_path] = 1 + sum(inside)
        if self.counted[config_path] > MOST_FILES:
            raise ConfigError(f"{config_path}: its defaults lists name more than {MOST_FILES:,} files in all.")
        return self.counted[config_path]

    def that_names(self, config_path: str) -> Path | None:
        """The first of the files that were read whose defaults list asks for a choice."""
        read = [read for source in self.sources if isinstance(source, Folder) for read in source.read.items()]
        return next((found.file for path, found in read if config_path in self.named_by(path)), None)


# Hydra around our files: it follows the defaults lists, and is the application around a run. Of its own modules three
# are imported, each for what has no public name.


class Loader(ConfigLoaderImpl):
    """Hydra's, over our places, beside any that a running Hydra application holds: it follows defaults lists, and
    composes what is its own.
    """

    def __init__(self, files: Files) -> None:
        version.setbase("1.3")
        super().__init__(create_config_search_path(None))
        self.files = files
        self.get_sources()[1:1] = files.sources  # after Hydra's own, before what is registered with it


class Application(Loader):
    """For Hydra as the application: what it shows and writes down is the tree that was composed."""

    def __init__(self, files: Files, composed: Callable[[Sequence[str], bool], Mapping[str, Any]]) -> None:
        """`composed` makes the tree of overrides: with references followed, or as it is written."""
        super().__init__(files)
        self.composed = composed

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> Any:
        """The base of a sweep lacks what its points say, which may be what is referred to: there references stay."""
        said = parsed_overrides(overrides)
        own = [o for o in said if not o.is_hydra_override()]
        kept = [str(o.input_line) for o in said if o not in own or self.repository.group_exists(o.key_or_group)]
        config = super().load_configuration(config_name, kept, run_mode, from_shell, validate_sweep_overrides)
        tree = self.composed([str(o.input_line) for o in own], run_mode is RunMode.RUN)
        if run_mode is RunMode.RUN:
            tree = _settled(tree, trusted=any(o.key_or_group == "trust" and o.value() is True for o in own))
        with flag_override(config, ["struct", "readonly"], [False, False]):
            for key in [key for key in config if key != "hydra" and key not in tree]:
                del config[key]
            for key, value in escaped(tree).items():
                config[key] = value
        job, how = config.hydra.job, config.hydra.job.config.override_dirname
        config.hydra.overrides.task = [str(o.input_line) for o in own]  # those, too, that Hydra was not given
        job.override_dirname = get_overrides_dirname(
            overrides=own, kv_sep=how.kv_sep, item_sep=how.item_sep, exclude_keys=how.exclude_keys
        )
        return config

    def load_sweep_config(self, master_config: Any, sweep_overrides: list[str]) -> Any:
        """Hydra's sweeper asks whether each point can be composed: that was seen before Hydra began."""
        return master_config


def _settled(tree: Mapping[str, Any], *, trusted: bool) -> Mapping[str, Any]:
    """With what the model's own code says of its options, where the command line trusts it; mistakes are told later."""
    options = dict(tree["model"]) if trusted and isinstance(tree.get("model"), Mapping) else {}
    with suppress(ConfigError):
        model = structure(MODELS.get(str(options.pop("name", ""))), options, "model")
        if model.needs_trust:
            model.check()
            return {**tree, "model": {"name": model.name, **facts_of(model.settled()[0])}}
    return tree


# Hydra as the application around a run: it makes the folder, `.hydra/` and the log, and answers --cfg, --info, --help.
# What `hydra.main` does, with our loader in the place of its own.

NAME = "run"


def run_application(
    arguments: argparse.Namespace, loader: Loader, config_name: str, task: Callable[[Any], None]
) -> None:
    """Follow the arguments of a command line, which Hydra's own parser made. ConfigError says what Hydra refuses."""
    from hydra._internal.hydra import Hydra  # `hydra.main` makes its own loader
    from hydra.core.global_hydra import GlobalHydra

    _check(arguments)
    with translate_hydra_errors():
        hydra = Hydra(task_name=NAME, config_loader=loader)
        GlobalHydra.instance().initialize(hydra)
        try:
            _follow(hydra, arguments, config_name, task)
        except BrokenPipeError:
            raise  # of whoever reads what Hydra answers: it has enough
        except OSError as error:
            where = f" {str(error.filename)[:200]}" if error.filename else ""
            raise ConfigError(f"the folder of the run cannot be written:{where} {error.strerror or error}.") from error
        finally:
            GlobalHydra.instance().clear()


def _check(arguments: argparse.Namespace) -> None:
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.info, arguments.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("only one of --run, --multirun, --cfg, --info and --shell-completion can be asked for.")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigError("--resolve is for --cfg and --help.")


def _follow(hydra: Any, arguments: argparse.Namespace, name: str, task: Callable[[Any], None]) -> None:
    overrides = arguments.overrides
    if arguments.help:
        hydra.app_help(config_name=name, args_parser=get_args_parser(), args=arguments)
    elif arguments.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=get_args_parser(), args=arguments)
    elif arguments.cfg:
        hydra.show_cfg(
            config_name=name,
            overrides=overrides,
            cfg_type=arguments.cfg,
            package=arguments.package,
            resolve=arguments.resolve,
        )
    elif arguments.info:
        hydra.show_info(arguments.info, config_name=name, overrides=overrides)
    elif arguments.shell_completion:
        hydra.shell_completion(config_name=name, overrides=overrides)
    elif arguments.multirun:
        hydra.multirun(config_name=name, task_function=task, overrides=[*overrides, "hydra.mode=MULTIRUN"])
    else:
        hydra.run(config_name=name, task_function=task, overrides=[*overrides, "hydra.mode=RUN"])
