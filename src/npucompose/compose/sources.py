"""Where choices lie: the packaged `conf/`, a person's folders, installed packages, names without a file. Loads Hydra.

Each file is read once, to plain data. Hydra is handed its defaults list, and of files that came with a package what
they say of Hydra; values never pass through it.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from npucompose.compose.conf import REGISTERED, WITHOUT_YAML, conf_dir, files_of, installed_dirs, registry_of
from npucompose.compose.references import CLOSED, Environment
from npucompose.compose.untrusted_config import EXPERIMENT, GLOBAL, LIMITS, includes, read_foreign, yaml_resolvers
from npucompose.errors import ConfigError
from npucompose.input_safety import plain_data, read_text

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
