"""`npucompose device-kit recipe.yaml [key=value …]` writes a kit, `device-kit read results.json` reads its results."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_free.store import write_atomically
from npucompose.arguments import KIT_OUT
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, device_folder, recipe_key
from npucompose.experiment.lock import read
from npucompose.experiment.verify import job_of
from npucompose.input_safety import load_yaml, read_text
from npucompose.recipe.device_kit import Read, device_name, result_files, texts
from npucompose.results import premises
from npucompose.targets import TARGETS

READ = "read"


def act(arguments: argparse.Namespace) -> int:
    if arguments.words[0] == READ:
        return _read(arguments.words[1:], arguments.out)
    file, *overrides = arguments.words
    job = _job(Path(file), overrides, arguments.config_dir, trust=arguments.trust)
    folder = Path(arguments.out or KIT_OUT)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {folder} is there and not empty: name a new folder for the kit.")
    for path in _written(folder, texts(job.composed, job.checked, recipe_key(job.ingredients.values))):
        print(path)
    print(f"put a model into {folder / 'my_model.py'}, then on the host: python3 {folder.name}/run_kit.py")
    return 0


def _job(file: Path, overrides: Sequence[str], config_dirs: Sequence[str], *, trust: bool) -> Job:
    """The experiment of a recipe. An NPU that is not here is compiled for all the same: with npu_offline."""
    data: Any = load_yaml(file)
    if isinstance(data, dict) and "configuration" in data:
        if overrides:
            raise ConfigError(f"{file} is locked: it takes no key=value. Lock another experiment.")
        return job_of(read(file), trust=trust)
    with tempfile.TemporaryDirectory(prefix="npucompose-kit-") as folder:
        name = "".join(c if c.isalnum() else "_" for c in file.stem) or "recipe"
        (Path(folder) / "experiment").mkdir()
        shutil.copyfile(file, Path(folder) / "experiment" / f"{name}.yaml")
        words = [f"experiment={name}", *(["trust=true"] if trust else []), *overrides]
        composed = compose(words, config_dirs=[folder, *config_dirs])
        target = TARGETS.get(composed.tree["target"]["name"])
        if target.without_device is not None:
            composed = compose([*words, f"target={target.without_device}"], config_dirs=[folder, *config_dirs])
        return Job.from_composed(composed)


def _read(words: Sequence[str], out: str | None) -> int:
    if len(words) != 1:
        raise ConfigError("device-kit read takes one result file: npucompose device-kit read results.json")
    file = Path(words[0])
    found = Read(results=premises.read(file, read_text(file)))
    print("\n".join(found.lines()))
    for path in _written(Path(out) if out else device_folder(device_name(found.results)), result_files(found)):
        print(f"written: {path}")
    return 1 if any(claim.outcome == "refuted" for claim in found.results.claims.values()) else 0


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    try:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}.") from None
    return [folder / name for name in texts]
