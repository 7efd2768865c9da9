"""`npucompose device-kit recipe.yaml [key=value …]` writes a kit, `device-kit read results.json` reads its results.

A kit is one folder of plain scripts with which the owner of an NPU proves a recipe on their own model. It is written
here, run there without npucompose, and read here again: of the result file come the files that the engine uses. The
scripts are those of kit_files/, as they stand; compiled.py is the ejected recipe.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from airflow_free.store import write_atomically
from npucompose.compose.check import Checked
from npucompose.compose.tree import Composed, Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, device_folder, recipe_key
from npucompose.experiment.lock import read
from npucompose.experiment.verify import job_of
from npucompose.input_safety import load_yaml, read_text
from npucompose.recipe.ejected import script_of
from npucompose.results import premises
from npucompose.table.modes import GE
from npucompose.targets import TARGETS
from npucompose.vendor.compiler import EVERY_LEAF
from npucompose.version import __version__
from npucompose_devtools.commands import KIT_OUT

READ = "read"
FILES = ("README.txt", "my_model.py", "run_kit.py", "observe.py")
RECORD, SCOPE = ".air.record.default", ".scope_enter.default"
"""How an ejected script writes the edits that make an event and a side stream."""
OPAQUE = ("pool", "names", "code")
"""Kinds of options whose value is an object of the vendor's that says no name."""
COSTS = {"launch_us": "launch_us", "gbytes_s": "gbytes_s"}
"""{figure of a kit: the field of streams.device that it replaces}."""


def act(arguments: argparse.Namespace) -> int:
    if arguments.words[0] == READ:
        return _read(arguments.words[1:], arguments.out)
    file, *overrides = arguments.words
    job = _job(Path(file), overrides, arguments)
    folder = Path(arguments.out or KIT_OUT)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {folder} is there and not empty: name a new folder for the kit.")
    for path in _written(folder, kit_texts(job.composed, job.checked, recipe_key(job.ingredients.values))):
        print(path)
    print(f"put a model into {folder / 'my_model.py'}, then on the host: python3 {folder.name}/run_kit.py")
    return 0


def _job(file: Path, overrides: Sequence[str], arguments: argparse.Namespace) -> Job:
    """The experiment of a recipe. An NPU that is not here is compiled for all the same: with npu_offline."""
    data: Any = load_yaml(file)
    if isinstance(data, dict) and "configuration" in data:
        if overrides:
            raise ConfigError(f"{file} is locked: it takes no key=value. Lock another experiment.")
        return job_of(read(file), trust=arguments.trust)
    with tempfile.TemporaryDirectory(prefix="npucompose-kit-") as folder:
        name = "".join(c if c.isalnum() else "_" for c in file.stem) or "recipe"
        (Path(folder) / "experiment").mkdir()
        shutil.copyfile(file, Path(folder) / "experiment" / f"{name}.yaml")
        words = [f"experiment={name}", *(["trust=true"] if arguments.trust else []), *overrides]
        composer = Composer(config_dirs=[folder, *arguments.config_dir], environment=arguments.env)
        composed = composer.compose(words)
        target = TARGETS.get(composed.tree["target"]["name"])
        if target.without_device is not None:
            composed = composer.compose([*words, f"target={target.without_device}"])
        return Job.from_composed(composed)


def _read(words: Sequence[str], out: str | None) -> int:
    if len(words) != 1:
        raise ConfigError("device-kit read takes one result file: npucompose device-kit read results.json")
    file = Path(words[0])
    results = premises.read(file, read_text(file, named=True))
    print("\n".join(_lines(results)))
    for path in _written(Path(out) if out else device_folder(device_name(results)), result_files(results)):
        print(f"written: {path}")
    return 1 if any(claim.outcome == "refuted" for claim in results.claims.values()) else 0


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Nobody has named these files: a link that lies there is replaced, and what it leads to stays."""
    try:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}.") from None
    return [folder / name for name in texts]


def kit_texts(composed: Composed, checked: Checked, configuration: str) -> dict[str, str]:
    """{file: text} of a kit."""
    script = script_of(composed, checked)
    kit = json.dumps(about(checked, script, configuration), indent=1) + "\n"
    plain = {
        name: (resources.files("npucompose_devtools.device_kit") / "kit_files" / name).read_text("utf-8")
        for name in FILES
    }
    return {**plain, "compiled.py": script, "kit.json": kit}


def about(checked: Checked, script: str, configuration: str) -> dict[str, Any]:
    """kit.json: what the scripts expect to see."""
    experiment = checked.experiment
    changed = experiment.compiler.changed()
    options = {
        EVERY_LEAF[path].genuine_path: {
            "asked": _plain(value),
            "default": _plain(EVERY_LEAF[path].default),
            "opaque": EVERY_LEAF[path].kind in OPAQUE,
        }
        for path, value in changed.items()
    }
    return {
        "recipe": configuration,
        "npucompose": __version__,
        "mode": experiment.mode.name,
        "seed": experiment.seed,
        "options": options,
        "events": script.count(RECORD),
        "side_streams": script.count(SCOPE),
        "sink": experiment.mode.name == GE and experiment.tiling.schedule == "sink",
        "eager_graph": bool(changed.get("npugraph_ex.force_eager") or changed.get("debug.run_eagerly")),
        "frozen": bool(checked.passes),
        "rests_on": list(premises.rests_on(experiment)),
    }


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _lines(results: premises.DeviceResults) -> Iterator[str]:
    yield f"on {results.on}"
    for claim in results.claims.values():
        error = f": {' '.join(claim.error.split())}" if claim.error else ""
        yield f"  {claim.outcome:<8} {claim.name}: {claim.says}{error}"
    for option in _rows(results.data, "options"):
        differs = ", ".join(map(str, option.get("differs") or {}))
        words = {"seen": f"acted ({differs})", "not seen": "no effect was seen"}.get(str(option.get("acted")), "?")
        yield f"  option   {option.get('option')}={_shown(option.get('asked'))}: {words}"
    streams = _mapping(results.data, "streams")
    if streams:
        yield "  streams  " + ", ".join(f"{name} {_shown(value)}" for name, value in streams.items())
    yield from _measured(results.data)
    yield from (f"  not looked at: {text}" for text in results.data.get("not_looked_at") or [])


def _measured(data: Mapping[str, Any]) -> Iterator[str]:
    medians = _medians(data)
    if set(medians) == {"eager", "compiled"}:
        speedup = medians["eager"] / medians["compiled"]
        yield f"  times    eager {medians['eager']:.1f} µs, compiled {medians['compiled']:.1f} µs: {speedup:.2f} x"
    else:
        yield "  times    not run"
    kernels = sorted(_mapping(data, "kernels").items(), key=lambda row: -_number(row[1].get("us")))
    for name, row in kernels[:10]:
        yield f"  kernel   {name}: {row.get('calls')} calls, {_number(row.get('us')):.1f} µs"


def _medians(data: Mapping[str, Any]) -> dict[str, float]:
    samples = _mapping(data, "times_us").items()
    return {name: sorted(map(_number, us))[len(us) // 2] for name, us in samples if us}


def _costs(data: Mapping[str, Any]) -> dict[str, float]:
    """What replaces figures of the target's device model, as streams.device takes it."""
    found = _mapping(data, "costs")
    return {COSTS[name]: _number(value) for name, value in found.items() if name in COSTS and _number(value) > 0}


def result_files(results: premises.DeviceResults) -> dict[str, str]:
    """{file: text}: verdicts.json, report.txt and, where something was measured, conf/streams/<device>.yaml."""
    found = {"verdicts.json": json.dumps(dict(results.data), indent=1) + "\n"}
    found["report.txt"] = "\n".join(_lines(results)) + "\n"
    if costs := _costs(results.data):
        head = f"# the streams are planned with what was measured on {results.on}\n"
        text = yaml.safe_dump({"kind": "auto", "device": costs}, sort_keys=False)
        found[f"conf/streams/{device_name(results)}.yaml"] = f"{head}name: {device_name(results)}\n{text}"
    return found


def device_name(results: premises.DeviceResults) -> str:
    """A plain name for files and choices: `Ascend910B4`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", str(results.device.get("soc") or "unknown"))[:60].strip("_") or "unknown"


def _mapping(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


def _rows(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = data.get(name)
    return [dict(row) for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
