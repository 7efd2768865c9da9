"""Hydra around our files: where it finds YAML (conf/, extensions, a person's folders), and Hydra as the application.

Of a person's folders it gets plain data. Loads Hydra.
"""

from __future__ import annotations

import argparse
import functools
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import version
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import OmegaConf, flag_override

from npucompose.compose.conf import REGISTERED, WITHOUT_YAML, conf_dir, installed_dirs, registry_of
from npucompose.compose.merge import Keys, completed, with_overrides
from npucompose.compose.overrides import parsed_overrides, translate_hydra_errors
from npucompose.compose.references import CLOSED, Environment, escaped, resolved
from npucompose.compose.untrusted_config import EXPERIMENT, GLOBAL, read_foreign
from npucompose.errors import ConfigError
from npucompose.models import MODELS
from npucompose.table.structure import facts_of, structure

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

MOST_FILES = 1_000
"""Of one defaults list, a file counted each time that it is named."""
DEEPEST = 50


def _where_it_is_read(made: Callable[..., Any]) -> Callable[..., Any]:
    """Hydra makes the choices that a defaults list may refer to anew for each file of a configuration: half of the time
    of composing one, where hardly any list refers to something.
    """

    @functools.wraps(made)
    def interpolation_map(overrides: Any, defaults_list: Any, self_added: bool) -> Any:
        referring = any(entry.is_interpolation() for entry in defaults_list if not entry.is_self())
        return made(overrides, defaults_list, self_added) if referring else None

    return interpolation_map


hydra_defaults._create_interpolation_map = _where_it_is_read(hydra_defaults._create_interpolation_map)


class FinishingLoader(ConfigLoaderImpl):
    """Composes choices as Hydra does; values are merged by us, and references are followed by us."""

    environment: Environment = CLOSED

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> Any:
        said = parsed_overrides(overrides)
        values = [o for o in said if not (o.is_hydra_override() or o.is_sweep_override() or self.chooses(o))]
        rest = [str(o.input_line) for o in said if o not in values]
        config = super().load_configuration(config_name, rest, run_mode, from_shell, validate_sweep_overrides)
        _finish(config, values, self.environment if run_mode is RunMode.RUN else None)
        _record(config, [o for o in said if not o.is_hydra_override()])
        return config

    def chooses(self, o: Override) -> bool:
        return self.repository.group_exists(o.key_or_group)


def loader_of(config_dirs: Sequence[Path], environment: Environment = CLOSED) -> ConfigLoaderImpl:
    """Hydra's loader over conf/ and `config_dirs`, beside any that a running Hydra application holds; values may read
    the variables of `environment`.

    What it loads holds no reference any more but Hydra's own, below `hydra`.
    """
    version.setbase("1.3")
    search_path = create_config_search_path(str(conf_dir()))
    for folder in config_dirs:
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    loader = FinishingLoader(config_search_path=search_path)
    loader.environment = environment
    loader.repository = GuardedRepository(search_path, config_dirs, environment)
    return loader


def plain(config: Any, *, but: str = "") -> dict[str, Any]:
    """The values of a DictConfig as they are written, its references not followed; the key `but` left out."""
    nodes = {str(key): config._get_node(key) for key in config if key != but}
    return {
        key: OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node._value()
        for key, node in nodes.items()
    }


def _finish(config: Any, values: Sequence[Override], environment: Environment | None) -> None:
    """Our tree in the place of what OmegaConf would resolve. The base of a sweep lacks what its points say, which may
    be what is referred to: there (`environment` is None) the references stay, as text."""
    base = completed(plain(config, but="hydra"))
    tree = with_overrides(base, values, Keys.of(base))
    if environment is not None:
        tree = _settled(
            resolved(tree, environment), trusted=any(o.key_or_group == "trust" and o.value() is True for o in values)
        )
    tree = escaped(tree)
    with flag_override(config, ["struct", "readonly"], [False, False]):
        for key in [key for key in config if key != "hydra" and key not in tree]:
            del config[key]
        for key, value in tree.items():
            config[key] = value


def _settled(tree: dict[str, Any], *, trusted: bool) -> dict[str, Any]:
    """With what the model's own code says of its options, where the command line trusts it; mistakes are told later."""
    options = dict(tree["model"]) if trusted and isinstance(tree.get("model"), dict) else {}
    with suppress(ConfigError):
        model = structure(MODELS.get(str(options.pop("name", ""))), options, "model")
        if model.needs_trust:
            model.check()
            return {**tree, "model": {"name": model.name, **facts_of(model.settled()[0])}}
    return tree


def _record(config: Any, overrides: Sequence[Override]) -> None:
    """What Hydra writes down of the overrides, those among them that it was not given."""
    job, how = config.hydra.job, config.hydra.job.config.override_dirname
    config.hydra.overrides.task = [str(o.input_line) for o in overrides]
    job.override_dirname = get_overrides_dirname(
        overrides=list(overrides), kv_sep=how.kv_sep, item_sep=how.item_sep, exclude_keys=how.exclude_keys
    )


class ForeignFiles(FileConfigSource):
    """The YAML below one folder that did not come with the package."""

    def __init__(self, provider: str, path: str, repository: GuardedRepository) -> None:
        super().__init__(provider, path)
        self.repository = repository

    def load_config(self, config_path: str) -> Any:
        root = Path(self.path).resolve()
        file = (root / self._normalize_file_name(config_path)).resolve()
        if not file.is_relative_to(root):
            raise ConfigError(f"'{config_path}' lies outside of the folder {root.name} that --config-dir names.")
        content, package = read_foreign(file, config_path, self.repository.is_known_group, self.repository.environment)
        return ConfigResult(
            config=OmegaConf.create(content),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header={"package": package},
        )


class PackagedFiles(FileConfigSource):
    """The package's own YAML: a process reads a file once, and again only where it is another by then."""

    def load_config(self, config_path: str) -> Any:
        file = Path(self.path, self._normalize_file_name(config_path))
        state = file.stat()
        written = state.st_mtime_ns, state.st_size
        if file not in _read or _read[file][0] != written:
            _read[file] = written, pickle.dumps(super().load_config(config_path))
        return pickle.loads(_read[file][1])


_read: dict[Path, tuple[tuple[int, int], bytes]] = {}
"""{a file of the package: when it was written and its size, and what was read}."""


class Registered(ConfigSource):
    """A choice of every target, model and pass that has no file: its name, and every option at its default."""

    def __init__(self) -> None:
        super().__init__("registered", REGISTERED)

    @staticmethod
    def scheme() -> str:
        return "registered"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in WITHOUT_YAML

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return group in WITHOUT_YAML and name in registry_of(group)

    def load_config(self, config_path: str) -> Any:
        group, _, name = config_path.rpartition("/")
        content = {name: {}} if group == "passes" else {"name": name}
        package = registry_of(group).package(name)
        return ConfigResult(
            config=OmegaConf.create(content), path=REGISTERED, provider=package, header={"package": None}
        )

    def list(self, config_path: str, results_filter: Any) -> list[str]:
        return [*registry_of(config_path).names()]


class GuardedRepository(ConfigRepository):
    """Reads each file once; what it hands out is a copy, because Hydra changes what it is given."""

    def __init__(self, search_path: Any, config_dirs: Sequence[Path], environment: Environment = CLOSED) -> None:
        super().__init__(search_path)
        self.environment = environment
        theirs = {str(folder) for folder in config_dirs}
        packaged = str(conf_dir())
        self.sources = [
            PackagedFiles(s.provider, s.path) if s.scheme() == "file" and s.path == packaged else s
            for s in self.sources
        ]
        self.ours = [s for s in self.sources if s.scheme() != "file" or s.path not in theirs]
        self.guards = bool(theirs)
        self.sources = [s if s in self.ours else ForeignFiles(s.provider, s.path, self) for s in self.sources]
        self.without = True
        """The folders of installed packages are not among the sources yet."""
        self.read: dict[str, Any] = {}
        self.copied: dict[str, bytes] = {}
        """Of what was read: a quarter of the time of `copy.deepcopy`."""
        self.counted: dict[str, int] = {}

    def __deepcopy__(self, memo: Any) -> GuardedRepository:
        return self  # Hydra copies a repository before it adds hydra.searchpath, which nobody here may set

    def _find_object_source(self, config_path: str, object_type: Any) -> Any:
        """Where nobody else has a file, installed packages are asked for it, from then on."""
        found = super()._find_object_source(config_path, object_type)
        nobodys = config_path.startswith("hydra/") or config_path.endswith("/None")  # `experiment: null` is asked for
        if found is not None or object_type is not ObjectType.CONFIG or nobodys:
            return found
        self.add_installed()
        return super()._find_object_source(config_path, object_type)

    def get_group_options(self, group_name: str, results_filter: Any = ObjectType.CONFIG) -> list[str]:
        self.add_installed()
        return super().get_group_options(group_name, results_filter)

    def add_installed(self) -> None:
        if self.without:
            folders = installed_dirs().items()
            added: list[Any] = [FileConfigSource(package, f"file://{folder}") for folder, package in folders]
            added.append(Registered())
            self.ours, self.without = [*self.ours, *added], False
            self.sources[-1:-1] = added  # Hydra's own has to be the last

    def is_known_group(self, group: str) -> bool:
        """Of the package or an installed extension."""
        return any(source.is_group(group) for source in self.ours)

    def load_config(self, config_path: str) -> Any:
        if self.guards:
            self._count(config_path, ())
        if config_path not in self.copied:
            self.copied[config_path] = pickle.dumps(self._loaded(config_path))
        return pickle.loads(self.copied[config_path])

    def _loaded(self, config_path: str) -> Any:
        """An experiment lies at the top, whether its header says so or not: JSON has no comments."""
        if config_path not in self.read:
            result = self.read[config_path] = super().load_config(config_path)
            if result is not None and config_path.startswith(f"{EXPERIMENT}/"):
                result.header["package"] = result.header.get("package") or GLOBAL
        return self.read[config_path]

    def _count(self, config_path: str, above: tuple[str, ...]) -> int:
        """How many files the defaults list of one asks for; Hydra would follow it without end."""
        if config_path in above or len(above) > DEEPEST:
            way = " -> ".join([*above[-3:], config_path])
            raise ConfigError(f"the defaults lists lead from file to file without end: {way}.")
        if config_path not in self.counted:
            inside = [self._count(path, (*above, config_path)) for path in self.named_by(config_path)]
            self.counted[config_path] = 1 + sum(inside)
        if self.counted[config_path] > MOST_FILES:
            raise ConfigError(f"{config_path}: its defaults lists name more than {MOST_FILES:,} files in all.")
        return self.counted[config_path]

    def named_by(self, config_path: str) -> list[str]:
        """`passes/cse` for each choice in the defaults list of a file."""
        result = self._loaded(config_path)
        group = config_path.rpartition("/")[0]
        named: list[str] = []
        for one in (result.defaults_list if result is not None else None) or ():
            if hasattr(one, "group"):
                where = one.group[1:] if one.group.startswith("/") else f"{group}/{one.group}".lstrip("/")
                choices = one.value if isinstance(one.value, list) else [one.value]
                named += [f"{where}/{choice}" for choice in choices if isinstance(choice, str)]
            elif isinstance(path := getattr(one, "path", None), str) and path != "_self_":
                named.append(path[1:] if path.startswith("/") else f"{group}/{path}".lstrip("/"))
        return named


# Hydra as the application around a run: it makes the folder, `.hydra/` and the log, and answers --cfg, --info, --help.
# What `hydra.main` does, with our loader in the place of its own: no file is read a second time, unchecked.

NAME = "run"
MOST_SHOWN = 200


def run_application(
    arguments: argparse.Namespace, loader: ConfigLoaderImpl, config_name: str, task: Callable[[Any], None]
) -> None:
    """Follow the arguments of a command line, which Hydra's own parser made. ConfigError says what Hydra refuses."""
    from hydra._internal.hydra import Hydra
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
            where = f" {str(error.filename)[:MOST_SHOWN]}" if error.filename else ""
            raise ConfigError(f"the folder of the run cannot be written:{where} {error.strerror or error}.") from error
        finally:
            GlobalHydra.instance().clear()


def _check(arguments: argparse.Namespace) -> None:
    asked = [arguments.run, arguments.multirun, arguments.cfg, arguments.info, arguments.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("only one of --run, --multirun, --cfg, --info and --shell-completion can be asked for.")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigError("--resolve is for --cfg and --help.")


def _follow(hydra: Hydra, arguments: argparse.Namespace, name: str, task: Callable[[Any], None]) -> None:
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
