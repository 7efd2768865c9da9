"""A Hugging Face folder on this disk, as `save_pretrained` or the hub's cache holds it: `config.json` as plain data.

Fetches nothing, and imports nothing that the folder names.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from npucompose.errors import ConfigError, raise_for
from npucompose.input_safety import read_text
from npucompose.table.options import CLASS, foreign_config_problems, is_name

CONFIG = "config.json"
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""`Qwen/Qwen2-0.5B`; a path that leads anywhere else has another form."""
MOST_BYTES = 1_000_000
ABOUT = frozenset(
    {"architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "task_specific_params"}
)
"""Keys that say where a configuration comes from, and not what its model computes; `dtype` is the option's."""


@frozen(kw_only=True)
class Folder:
    path: Path
    architecture: str | None
    """The class that the configuration names first; None where it names none."""
    config: Mapping[str, Any]
    """What the class of the configuration is called with."""

    @staticmethod
    def of(name: str, where: str) -> Folder:
        """ConfigError where there is none, its configuration is no plain data, or needs code or files of its own."""
        path = Path(name)
        if not (path / CONFIG).is_file():
            path = _downloaded(name, where)
        try:
            said: Any = json.loads(  # the hub's cache is made of links
                read_text(path / CONFIG, MOST_BYTES, named=True)
            )
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}={name}: {CONFIG} is not JSON: {error}.") from error
        if not isinstance(said, dict):
            raise ConfigError(f"{where}={name}: {CONFIG} holds no mapping of keys.")
        whole = cast("dict[str, Any]", said)
        if "auto_map" in whole:
            raise ConfigError(f"{where}={name}: {CONFIG} names code of its own (auto_map), which is never imported.")
        config = _computed(whole)
        raise_for([f"{where}={name}: {problem}." for problem in foreign_config_problems(config, CONFIG)])
        named = whole.get("architectures") or [None]
        first = named[0] if isinstance(named, list) else None
        if first is not None and not (isinstance(first, str) and is_name(first, CLASS)):
            raise ConfigError(f"{where}={name}: 'architectures' of {CONFIG} must name a class: {str(first)[:60]!r}.")
        return Folder(path=path, architecture=first, config=config)

    def weights(self) -> tuple[Path, ...]:
        """The files of its weights, in the one format that holds data alone."""
        return tuple(sorted(self.path.glob("*.safetensors")))


def _downloaded(name: str, where: str) -> Path:
    """Where the Hugging Face cache of this machine holds the model of that name; it is asked for nothing more."""
    missing = f"{where}={name}: there is no {CONFIG} in such a folder"
    if HUB_NAME.fullmatch(name) is None or importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"{missing}.")
    from huggingface_hub import try_to_load_from_cache  # pyright: ignore[reportMissingImports]

    try:
        found = try_to_load_from_cache(name, CONFIG)
    except ValueError as error:  # no name of the hub
        raise ConfigError(f"{missing}.") from error
    if not isinstance(found, str):
        raise ConfigError(
            f"{missing}, and no model of that name in the Hugging Face cache of this machine. Nothing is downloaded "
            f"here; `hf download {name}` does."
        )
    return Path(found).parent


def _computed(said: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a configuration says about itself; the names of labels as their number."""
    left = {key: value for key, value in said.items() if key not in ABOUT and not key.startswith("_")}
    labels = left.pop("id2label", None)
    left.pop("label2id", None)
    if isinstance(labels, dict):
        left["num_labels"] = len(cast("dict[str, Any]", labels))
    return {key: _computed(value) if isinstance(value, dict) else value for key, value in left.items()}
