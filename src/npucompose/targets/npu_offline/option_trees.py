"""The CompilerConfig classes of an unpacked wheel, without the rest of it, and what is proven on it. No device.

`python -m npucompose.targets.npu_offline.option_trees TREE` prints every leaf as JSON. One process for each tree: the
packages have the same names in every version, and reading them imports a little of torch.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from airflow_free.fresh_python import module_command
from npucompose import private
from npucompose.errors import ConfigError, listed
from npucompose.machine import cache_dir
from npucompose.targets.npu_offline.wheel import torch_wanted
from npucompose.vendor.option_specs import PREFIX, VendorOption, stored_path
from npucompose.vendor.versions import REFERENCE, every_leaf, genuine_tree, learn, order_of, same_sources, versions

PACKAGES = {"torchair": "", "npugraph_ex": "npugraph_ex."}
"""Package under torch_npu/dynamo -> what its paths start with here."""
TIME_LIMIT_S = 300.0
EXECUTED: Mapping[str, str] = {
    "2.13.0": "every claim of tests/npu on the simulator, with torch 2.13.0",
    "2.14.0": "every claim of tests/npu on the simulator, with torch 2.14.0 (73 of 73, on 2026-11-22)",
}
"""{version: what was run on it}: its TorchAir compiled, captured and replayed on the simulator, and compared."""

SET_AND_READ = "the slow tests set every leaf through YAML and read it back from its objects"
_FIXED = "_fixed_attrs"
_OPTION_MAP = "npugraphex_config"
"""Names and a map in class attributes, changed for the whole process: no leaf of the object."""


def read_tree(tree: Path) -> tuple[VendorOption, ...]:
    """Every leaf of both packages of the wheel unpacked in `tree`, read in a process of its own."""
    # Without the variable, torch would load a pip-installed torch_npu, and with it CANN.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ran = subprocess.run(
        module_command("npucompose.targets.npu_offline.option_trees", str(tree)),
        env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise ConfigError(f"the option trees of {tree} cannot be read: {last}")
    return tuple(VendorOption.from_dict(row) for row in json.loads(ran.stdout.strip().splitlines()[-1]))


def sources_digest(tree: Path) -> str | None:
    """Of the files that declare the options; None where the tree holds none."""
    files = sorted((tree / "torch_npu" / "dynamo").glob("*/configs/**/*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(tree).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest() if files else None


def live_tree(tree: Path) -> tuple[VendorOption, ...] | None:
    """The leaves of the wheel unpacked in `tree`, whatever version it says it is; None where it declares none.

    Files that are those of a known version have its tree. Others are read by `read_tree`, once: what was read is kept
    in the cache under the digest of the files. ConfigError where they cannot be read.
    """
    digest = sources_digest(tree)
    if digest is None:
        return None
    same = same_sources(digest)
    if same is not None:
        return tuple(genuine_tree(same).values())
    kept = cache_dir() / "option_trees" / f"{digest}.json"
    text = private.read(kept, cache_dir())
    if text is not None:
        return tuple(VendorOption.from_dict(row) for row in json.loads(text))
    leaves = read_tree(tree)
    private.keep(kept, cache_dir(), json.dumps([attrs.asdict(leaf) for leaf in leaves]))
    return leaves


def load_configs(tree: Path) -> dict[str, type[Any]]:
    """{package: CompilerConfig} in this process; a package that the wheel lacks is left out (npugraph_ex in 2.6.0)."""
    dynamo = tree / "torch_npu" / "dynamo"
    found: dict[str, type[Any]] = {}
    for package in PACKAGES:
        if (dynamo / package / "configs").is_dir():
            _bare(package, dynamo / package)
            found[package] = importlib.import_module(f"{package}.configs.compiler_config").CompilerConfig
    if not found:
        raise ConfigError(f"{tree} holds no torch_npu/dynamo/torchair: it is not an unpacked torch_npu wheel.")
    return found


def _bare(package: str, folder: Path) -> None:
    """A package object that only knows where its files are: the real `__init__` would load CANN's libraries."""
    module = types.ModuleType(package)
    module.__path__ = [str(folder)]
    module.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
    sys.modules[package] = module


def leaves_of(config: Any, prefix: str = "") -> Iterator[VendorOption]:
    """Every leaf of a genuine CompilerConfig object, in its order."""
    for name, value in vars(config).items():
        if name in (_FIXED, _OPTION_MAP):
            continue
        if is_option(value):
            yield _declared(prefix + name, value)
        elif hasattr(value, "__dict__") and not callable(value):
            yield from leaves_of(value, f"{prefix}{name}.")
        else:
            yield VendorOption(path=prefix + name, kind="plain", default=value)


def is_option(value: Any) -> bool:
    """Whether an attribute is one of the genuine OptionValue classes, which check what they are given."""
    return hasattr(value, "_value") and hasattr(value, "optional")


def _declared(path: str, value: Any) -> VendorOption:
    # The classes keep their limits in private attributes: _IntRangeValue__min, _RegexValue__regex.
    hidden = {name.rpartition("__")[2]: v for name, v in vars(value).items()}
    allowed = value.optional
    return VendorOption(
        path=path,
        kind=type(value).__name__,
        default=value.default,
        allowed=None if allowed is None else tuple(allowed),
        least=hidden.get("min"),
        most=hidden.get("max"),
        pattern=hidden.get("regex"),
    )


def claims_on(tree: Path, version: str) -> Iterator[str]:
    """A line for each claim on the wheel unpacked in `tree`: its options, setting them, execution."""
    try:
        leaves = live_tree(tree)
    except ConfigError as error:
        yield f"option tree: not read: {error}"
        leaves = None
    if leaves is not None:
        learn(version, leaves)
        flat = sum(leaf.path.startswith(PREFIX) for leaf in leaves)
        both = f"{len(leaves) - flat} of torchair, {flat} of npugraph_ex"
        yield f"option tree: read from it: {len(leaves)} leaves ({both})"
        yield _beside_the_reference(version)
        known = version in versions()
        yield f"setting options: {SET_AND_READ if known else 'not tried on this version'}"
    yield f"execution: {executed(version, torch_wanted(tree))}"


def executed(version: str, torch: str | None = None) -> str:
    """`proven: …`, or what was not run and what it would need."""
    if version in EXECUTED:
        return f"proven: {EXECUTED[version]}"
    needs = f"; it needs torch {torch}" if torch else ""
    not_run = "nothing of its compiling, capturing and replaying was run"
    return f"not proven: {not_run}{needs}. Proven on: {listed(EXECUTED)}"


def _beside_the_reference(version: str) -> str:
    """What its tree has more and less than the one that conf/compiler spells out."""
    mine, reference = genuine_tree(version), genuine_tree(REFERENCE)
    same = [name for name in versions() if name != version and genuine_tree(name) == mine]
    alike = f"the tree of {max(same, key=order_of)}" if same else "a tree of its own"
    yaml = {stored_path(leaf): path for path, leaf in every_leaf().items()}
    more = [yaml[path] for path in mine if path not in reference]
    less = [yaml[path] for path in reference if path not in mine]
    words = [f"{len(paths)} {what} {REFERENCE}" for paths, what in ((more, "not in"), (less, "only in")) if paths]
    return f"option tree: it is {alike}" + (f"; leaves: {', '.join(words)}" if words else "")


def main(tree: str) -> None:
    rows = [row for package, cls in load_configs(Path(tree)).items() for row in leaves_of(cls(), PACKAGES[package])]
    print(json.dumps([attrs.asdict(row) for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1])
