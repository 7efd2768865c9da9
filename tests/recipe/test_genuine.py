"""Ejected configurations, run against the genuine classes of the torch_npu wheel, leaf by leaf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from nursery import command

from npucompose import api
from npucompose.errors import FetchError
from npucompose.recipe import eject
from npucompose.recipe.ejected import Parts, text
from npucompose.recipe.vendor_options import Package, attributes
from npucompose.schema.experiment import Experiment, Mode
from npucompose.targets.npu_offline.wheel import fetch, pinned
from npucompose.vendor.compiler import LEAVES, CompilerOptions
from npucompose.vendor.option_specs import OptionSpec
from tests.recipe.experiments import OTHER_VERSIONS
from tests.recipe.wheel import torch_npu_tree

PACKAGES: tuple[Package, ...] = ("torchair", "npugraph_ex")
HERE = Path(__file__).resolve().parent


def another(leaf: OptionSpec) -> Any:
    """A value that is not the default."""
    if leaf.kind == "bool":
        return not leaf.default
    if leaf.choices is not None:
        return next((choice for choice in leaf.choices if choice != leaf.default), leaf.default)
    named = {
        "aicore_num": "24|48",
        "optimization_switch": "AddNFusionPass:off",
        "dump_step": "0|2-5",
        "dump_layer": "Add_1",
    }
    by_kind = {
        "int": 7,
        "ints": (2, 4),
        "names": ("mm", "aten.add*"),
        "dict": {"a": 1},
        "pool": "shared",
        "path": "dumps",
        "dir": "there",
    }
    return {**by_kind, "file": f"there/file{leaf.suffix}", "str": named.get(leaf.path.split(".")[-1], "cv")}[leaf.kind]


def told(entries: list[tuple[Any, ...]], folder: Path, tree: Path, version: str) -> list[dict[str, Any]]:
    """genuine_configs.py on [(package, script, mode, {path: value}), …]."""
    done = subprocess.run(
        command(str(HERE / "genuine_configs.py")),
        input=json.dumps({"tree": str(tree), "version": version, "scripts": entries}),
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def mode_of(package: Package) -> str:
    return "npugraph_ex" if package == "npugraph_ex" else "max-autotune"


def script_of(options: CompilerOptions, package: Package) -> str:
    return text(Parts(experiment=Experiment(mode=Mode(name=mode_of(package)), compiler=options), recipe={}))


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_every_leaf_set_by_a_script_stands_in_the_genuine_object_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    cases: list[tuple[Package, CompilerOptions]] = []
    for package in PACKAGES:
        mine = list(dict.fromkeys(x.path for x in attributes(package).values()))
        leaves = [LEAVES[path] for path in mine if LEAVES[path].set_by == "compiler"]
        for leaf in leaves:
            if leaf.kind == "file":
                (tmp_path / str(another(leaf))).touch()
        cases += [(package, CompilerOptions())]
        cases += [(package, CompilerOptions(values={leaf.path: another(leaf)})) for leaf in leaves]
        cases += [(package, CompilerOptions(values={leaf.path: another(leaf) for leaf in leaves}))]
    entries = [(p, script_of(options, p), mode_of(p), as_json(options.changed())) for p, options in cases]
    results = told(entries, tmp_path, torch_npu_tree(), "2.13.0")
    untouched = {p: next(r["leaves"] for r, (q, o) in zip(results, cases, strict=True) if p == q) for p in PACKAGES}
    for (package, options), result in zip(cases, results, strict=True):
        wanted = {LEAVES[path].genuine_path: value for path, value in options.changed().items()}
        changed = {path: value for path, value in result["leaves"].items() if value != untouched[package][path]}
        pools = {leaf.genuine_path for leaf in LEAVES.values() if leaf.kind == "pool"}
        assert changed == {path: [0, 1] if path in pools else as_json(value) for path, value in wanted.items()}
        assert result["tree"].get("compiler") == with_unnamed_pools(options, "2.13.0")
        assert result["unread"] == []
        assert result["as_dict"] == result["as_dict_by_yaml"]
    assert len(cases) == 2 * 2 + sum(x.set_by == "compiler" for x in LEAVES.values())


def with_unnamed_pools(options: CompilerOptions, version: str) -> Any:
    """The tree of options; a live handle says no name, and any name is a pool."""
    tree = attrs.evolve(options, torch_npu_version=version).as_tree(changed_only=True)
    return json.loads(json.dumps(tree).replace('"shared"', '"pool"'))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_VERSIONS)
def test_a_script_for_another_version_makes_that_versions_own_object_as_yaml_does(name: str, tmp_path: Path) -> None:
    """Only the configuration of that version is made: its compiler is for another torch."""
    checked = api.checked(OTHER_VERSIONS[name])
    mode, version = checked.experiment.mode.name, checked.torch_npu.version
    package: Package = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
    options = checked.experiment.compiler
    entry = (package, eject(*OTHER_VERSIONS[name]), mode, as_json(options.changed()))
    (result,) = told([entry], tmp_path, fetched(version), version)
    assert result["as_dict"] == result["as_dict_by_yaml"]
    assert result["tree"] == {"mode": {"name": mode}, "compiler": with_unnamed_pools(options, version)}
    assert result["unread"] == ["post_grad_custom_pre_pass"]


def fetched(version: str) -> Path:
    """The wheel of another version, of which only the Python files are read."""
    try:
        return fetch(pinned(version, "3.11", "x86_64"))[0]
    except FetchError as error:
        pytest.skip(f"needs the wheel of torch_npu {version}: {error}")


def test_a_leaf_that_the_genuine_class_does_not_have_is_noticed(tmp_path: Path) -> None:
    script = script_of(CompilerOptions(values={"ge_config.oo_level": "O1"}), "torchair").replace("oo_level", "oo_levle")
    with pytest.raises(AssertionError, match="oo_levle"):
        told([("torchair", script, "max-autotune", {})], tmp_path, torch_npu_tree(), "2.13.0")
