"""Configurations of public repositories: import, the engine's object, eject, and not one name in silence."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from npucompose import api
from npucompose.input_safety import plain_yaml
from npucompose.recipe import Imported, eject, import_file
from npucompose.recipe.dialects import flattened, read_command_line
from npucompose.recipe.vendor_options import attributes
from npucompose.schema.experiment import Experiment
from tests.recipe.fakes import FakeConfig
from tests.recipe.production import POOL, Production
from tests.recipe.production import PRODUCTION as OTHERS
from tests.recipe.production_vllm_ascend import VLLM_ASCEND
from tests.recipe.test_genuine import told
from tests.recipe.wheel import torch_npu_tree

STATIC = {"static_kernel_compile", "_aclnn_static_shape_kernel"}
PRODUCTION = (*OTHERS, *VLLM_ASCEND)
CARRIERS = {"backend", "config", "compiler_config", "options"}
"""Keywords whose value is read key by key."""
COMPILING = {"compile", "cache_compile", "get_npu_backend", "register_replacement", "set_compile_mode", "partial"}
MEANT = {
    "exe_mode": "mode", "mode": "mode", "level": "mode", "use_aclgraph": "mode", "enabled": "mode",
    "enable": "mode", "enable_graph_mode": "mode", "use_cached_npu_graph": "cache",
    "num_speculative_tokens": "sizes",
    "cudagraph_mode": "mode", "enable_npugraph_ex": "mode", "enable_cache_compile": "cache",
    "use_cached_graph": "cache", "use_ge_graph_cached": "cache", "enable_dynamic_graph": "shapes",
    "enable_static_kernel": "static", "enable_superkernel": "super_kernel_optimize",
    "cudagraph_capture_sizes": "sizes",
}  # fmt: skip
"""{key of a dialect: what of the YAML says the same}."""
each = pytest.mark.parametrize("case", PRODUCTION, ids=lambda case: case.name)


@cache
def imported(case: Production, folder: Path, *, assumes: bool = True) -> Imported:
    path = folder / f"{case.name.replace('/', '_')}{case.suffix}"
    path.write_text(case.text)
    return import_file(path, vllm_ascend_version=case.version, assume=case.assume if assumes else ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("production")


def printed(read: Imported) -> str:
    return "\n".join([*read.notes, *map(str, read.unread)])


@cache
def overrides(case: Production, folder: Path) -> tuple[list[str], list[str]]:
    """(overrides, folders) with which the YAML of a case is composed, on a target that needs no device."""
    chosen = folder / "conf" / "experiment"
    chosen.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in case.name)
    (chosen / f"{name}.yaml").write_text(imported(case, folder).yaml())
    return [f"experiment={name}", "target=npu_offline"], [str(folder / "conf")]


@cache
def experiment(case: Production, folder: Path) -> Experiment:
    chosen, dirs = overrides(case, folder)
    return api.checked(chosen, config_dirs=dirs).experiment


@each
def test_the_yaml_says_what_the_configuration_says(case: Production, folder: Path) -> None:
    found = experiment(case, folder)
    assert found.mode.name == case.mode
    for path, wanted in case.tree.items():
        value: Any = found.target.options["patch_for_hcom"] if path.startswith("target.") else _at(found, path)
        assert value == wanted, path


def _at(found: Experiment, path: str) -> Any:
    value: Any = found
    for part in path.split("."):
        value = getattr(value, part)
    return {name: list(sizes) for name, sizes in value.items()} if isinstance(value, dict) else (
        list(value) if isinstance(value, tuple) else value
    )  # fmt: skip


@each
def test_what_has_no_place_in_yaml_is_a_line(case: Production, folder: Path) -> None:
    read = imported(case, folder, assumes=False)
    lines = printed(read)
    assert ("mode" not in read.tree) is bool(case.assume)
    assert [words for words in case.printed if words not in lines] == [], lines


def names_of(case: Production) -> Iterator[str]:
    """Every keyword of a call that compiles and every option that is set or is a key, whoever sets it."""
    if case.suffix != ".py":
        command = case.suffix == ".sh"
        found = read_command_line(case.text, case.name).data if command else plain_yaml(case.text, case.name)
        of_the_engine = {"enforce_eager", "ascend_environment"} if command else set[str]()
        yield from {path.rpartition(".")[2] for path in flattened(found)} - of_the_engine
        return
    options = {p.rpartition(".")[2] for package in ("torchair", "npugraph_ex") for p in attributes(package)}
    for node in ast.walk(ast.parse(case.text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in COMPILING:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if node.attr in options or "config" in ast.unparse(node.value):
                yield node.attr
        elif isinstance(node, ast.Constant) and node.value in options:
            yield str(node.value)


@each
def test_no_option_and_no_keyword_is_passed_over(case: Production, folder: Path) -> None:
    read, found = imported(case, folder), experiment(case, folder)
    lines = printed(read) + printed(imported(case, folder, assumes=False))
    known = {path.rpartition(".")[2] for path in found.compiler.changed()}
    known |= {"dynamic", "fullgraph", "mode", "shapes", "cache"}
    known |= {"static" for name in known if name in STATIC} | {"sizes" for name in known if name.endswith("_range")}
    known |= {"sizes"} if found.extensions.named else set()
    silent = {
        name
        for name in names_of(case)
        if name not in CARRIERS
        and name not in lines
        and MEANT.get(name, name) not in known
        and not _is_default(name, case)
    }
    assert silent == set(), read.yaml() + lines


def _is_default(name: str, case: Production) -> bool:
    """An option that is set to its default changes nothing and is in no YAML."""
    return name in case.hand or name in {"super_kernel_optimize", "clone_output", "enable_view_optimize", "decode",
        "enable_frozen_parameter", "graph_batch_sizes_init"}  # fmt: skip


def hand_written(case: Production) -> str:
    """A script that makes the configuration by hand, in the form of an ejected one."""
    values = {path: value for path, value in case.hand.items() if path != "aclgraph_config.use_custom_pool"}
    pool = len(values) < len(case.hand)
    if case.mode == "npugraph_ex":
        return f"def options():\n    return {values!r}\n"
    lines = ["import torch, torchair", "def compiler_config():", "    config = torchair.CompilerConfig()"]
    lines += [f"    config.mode = {case.mode!r}", *(f"    config.{path} = {value!r}" for path, value in values.items())]
    lines += ["    config.aclgraph_config.use_custom_pool = torch.npu.graph_pool_handle()"] * pool
    return "\n".join([*lines, "    return config", ""])


@pytest.fixture(scope="module")
def objects(folder: Path) -> list[tuple[Production, dict[str, Any], dict[str, Any]]]:
    """(case, what the object by hand holds beside the engine's, what the ejected script's object holds)."""
    entries: list[tuple[Any, ...]] = []
    for case in PRODUCTION:
        package = "npugraph_ex" if case.mode == "npugraph_ex" else "torchair"
        options = dict(experiment(case, folder).compiler.changed())
        options.pop("aclgraph_config.use_custom_pool", None)  # its handle is a device's: compared in the script's
        entries += [(package, text, case.mode, options) for text in (hand_written(case), script_of(case, folder))]
    made = told(entries, folder, torch_npu_tree(), "2.13.0")
    return [(case, made[2 * n], made[2 * n + 1]) for n, case in enumerate(PRODUCTION)]


@cache
def script_of(case: Production, folder: Path) -> str:
    """The ejected script. What it says of inputs by name needs the model that has them."""
    chosen, dirs = overrides(case, folder)
    shapes = experiment(case, folder).shapes
    without = ["shapes.mark_static=[]"] if shapes.mark_static else []
    without += ["~shapes.gears"] if shapes.gears else []
    without += ["~extensions"] if experiment(case, folder).extensions.named else []
    return eject(*chosen, *without, config_dirs=dirs)


def test_the_engine_s_object_and_the_script_s_equal_the_one_by_hand_leaf_by_leaf(objects: Any) -> None:
    pool = "aclgraph_config.use_custom_pool"
    for case, by_hand, script in objects:
        assert script["leaves"] == by_hand["leaves"], case.name
        assert {**by_hand["leaves_by_yaml"], pool: 0} == {**by_hand["leaves"], pool: 0}, case.name


def test_the_comparison_by_leaves_sees_one_that_differs(folder: Path) -> None:
    case = attrs.evolve(PRODUCTION[0], hand={**PRODUCTION[0].hand, "debug.run_eagerly": True})
    options = dict(experiment(PRODUCTION[0], folder).compiler.changed())
    (made,) = told([("torchair", hand_written(case), case.mode, options)], folder, torch_npu_tree(), "2.13.0")
    assert made["leaves"]["debug.run_eagerly"] != made["leaves_by_yaml"]["debug.run_eagerly"]


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What a script calls of torch, torchair and torch_npu, with the keywords that are no configuration."""
    called: list[tuple[str, dict[str, Any]]] = []

    def record(name: str) -> Any:
        def call(*_: Any, **keywords: Any) -> str:
            kept = {key: value for key, value in keywords.items() if key in ("dynamic", "fullgraph")}
            called.append((name, kept))
            return name

        return call

    inference = SimpleNamespace(cache_compile=record("cache_compile"))
    torchair = SimpleNamespace(
        inference=inference,
        patch_for_hcom=record("patch_for_hcom"),
        get_npu_backend=record("get_npu_backend"),
        CompilerConfig=FakeConfig,
    )
    npu = SimpleNamespace(graph_pool_handle=lambda: POOL, npugraph_ex=SimpleNamespace(inference=inference))
    for name, module in {"torchair": torchair, "torch_npu": ModuleType("torch_npu")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setattr(torch, "compile", record("compile"))
    return called


@each
def test_the_ejected_script_compiles_as_production_does(case: Production, folder: Path, vendor: Any) -> None:
    names: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(script_of(case, folder), "ejected.py", "exec"), names)
    names["compiled"](torch.nn.Linear(1, 1), {})
    cached = case.tree.get("compile.cache", False)
    assert ("patch_for_hcom" in dict(vendor)) is case.tree.get("target.patch_for_hcom", False)
    assert vendor[-1][0] == ("cache_compile" if cached else "compile")
    assert vendor[-1][1]["dynamic"] is experiment(case, folder).shapes.dynamic
    assert ("fullgraph" in vendor[-1][1]) is not cached
