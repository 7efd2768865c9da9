"""Where Hydra finds YAML: conf/ and the folders that a person adds, each file read once and guarded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npucompose.compose.conf import conf_dir
from npucompose.compose.overrides import words
from npucompose.compose.strangers import check_content, check_text
from npucompose.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

NOT_OMEGACONFS = (OSError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError)
"""What OmegaConf lets through of a text that is YAML and no mapping of plain values."""


def loader_of(config_dirs: Sequence[Path]) -> ConfigLoaderImpl:
    """Hydra's loader over conf/ and `config_dirs`, beside any that a running Hydra application holds."""
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery

    # A running hydra.main has set the version base already; setting it again to the same value is harmless.
    version.setbase("1.3")
    search_path = create_config_search_path(str(conf_dir()))
    for folder in config_dirs:
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    loader = ConfigLoaderImpl(config_search_path=search_path)
    loader.repository = _guarded(search_path)
    return loader


def _guarded(search_path: Any) -> Any:
    from hydra._internal.config_repository import ConfigRepository
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from omegaconf import OmegaConf

    class GuardedFiles(FileConfigSource):
        """The YAML below one folder that is not ours."""

        def load_config(self, config_path: str) -> Any:
            root = Path(self.path).resolve()
            file = (root / self._normalize_file_name(config_path)).resolve()
            if not file.is_relative_to(root):
                raise ConfigError(f"'{config_path}' lies outside of the folder {root.name} that --config-dir names.")
            if file.is_file():
                check_text(file)
            try:
                result = super().load_config(config_path)
            except NOT_OMEGACONFS as error:
                raise ConfigError(f"{file.name} is no configuration: {words(error)}") from error
            content = OmegaConf.to_container(result.config, resolve=False)
            check_content(config_path, content, result.header.get("package"))
            return result

    class GuardedRepository(ConfigRepository):
        """Reads each file once; what it hands out is a copy, because Hydra changes what it is given."""

        def __init__(self) -> None:
            super().__init__(search_path)
            self.sources = [
                GuardedFiles(source.provider, source.path)
                if source.scheme() == "file" and Path(source.path) != conf_dir()
                else source
                for source in self.sources
            ]
            self.read: dict[str, Any] = {}

        def __deepcopy__(self, memo: Any) -> GuardedRepository:
            return self  # Hydra copies a repository before it adds hydra.searchpath, which nobody here may set

        def load_config(self, config_path: str) -> Any:
            if config_path not in self.read:
                self.read[config_path] = super().load_config(config_path)
            return copy.deepcopy(self.read[config_path])

    return GuardedRepository()
