"""TorchAir's functions beside torch.compile, its hooks and its account, on fakes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from npucompose.errors import ConfigError
from npucompose.npu.torchair import config, facts
from npucompose.npu.torchair.hooks import PassHooks
from npucompose.table.modes import NPUGRAPH_EX
from tests.targets.torchair_fakes import Backend, Packages, Pipeline

# Beside torch.compile.


def module_of_one() -> Any:
    return SimpleNamespace(forward="forward of the module")


def test_a_cached_function_is_saved_and_then_loaded(packages: Packages, tmp_path: Path) -> None:
    saves = tmp_path / "func" / config.CACHE_FILE

    def compiled(*args: Any, **named: Any) -> Any:
        saves.parent.mkdir(exist_ok=True)
        saves.touch()
        return args, named

    packages.result = lambda: compiled
    packages.result = compiled
    folders = SimpleNamespace(cache=tmp_path, files=None)
    backend: Any = Backend(folders=folders)
    cached = config.CachedModule(backend, module_of_one(), {"op": "taken apart"}, None)
    [(name, what, args, named)] = packages.asked
    assert (name, what, args) == ("torchair", "cache_compile", ("forward of the module",))
    assert named == {
        "config": backend.genuine.config, "dynamic": False, "cache_dir": str(tmp_path),
        "custom_decompositions": {"op": "taken apart"},
    }  # fmt: skip
    assert cached(1, two=2) == ((1,), {"two": 2})
    assert (backend.cache, len(backend.entered_at), backend.charged) == ("saved", 1, [(0, True)])
    assert cached(3) == ((3,), {})
    assert len(backend.entered_at) == len(backend.charged) == 1
    again: Any = Backend(folders=folders, mode=NPUGRAPH_EX)
    config.CachedModule(again, module_of_one(), {}, True)()
    assert again.cache == "loaded"
    assert (packages.asked[-1][0], packages.asked[-1][3]["dynamic"]) == ("npugraph_ex", True)
    compiled_again: Any = Backend(folders=folders, compilations=["one"])
    config.CachedModule(compiled_again, module_of_one(), {}, True)()
    assert compiled_again.cache == "saved"
    nowhere: Any = Backend(folders=SimpleNamespace(cache=tmp_path / "empty", files=None))
    (tmp_path / "empty").mkdir()
    config.CachedModule(nowhere, module_of_one(), {}, True)()
    assert nowhere.cache == "not saved"
    with pytest.raises(ConfigError, match=r"compile\.cache=true needs a folder"):
        config.CachedModule(Backend(), module_of_one(), {}, True)  # type: ignore[arg-type]


def test_export_is_given_the_call_and_says_where_to(packages: Packages) -> None:
    backend: Any = Backend()
    backend.genuine.config.export.export_path_dir = "there"
    backend.genuine.config.export.export_name = ""
    call: Any = SimpleNamespace(args=(1, 2), kwargs={"x": 3})
    config.export(backend, "module", call, None)  # type: ignore[arg-type]
    backend.genuine.config.export.export_name = "mine"
    config.export(backend, "module", call, True)  # type: ignore[arg-type]
    (name, what, args, named), (_, _, _, second) = packages.asked
    assert (name, what, args) == ("torchair", "dynamo_export", (1, 2))
    assert named == {
        "x": 3, "model": "module", "export_path": "there", "export_name": "export", "dynamic": False,
        "config": backend.genuine.config,
    }  # fmt: skip
    assert (second["export_name"], second["dynamic"]) == ("mine", True)
    assert (len(backend.entered_at), backend.charged) == (2, [(0, True)] * 2)
    own: Any = SimpleNamespace(args=(), kwargs={"model": 1, "config": 2})
    with pytest.raises(ConfigError, match=r"has arguments of its own named config(,| and) model"):
        config.export(backend, "module", own, True)  # type: ignore[arg-type]
    assert len(packages.asked) == 2


def test_collectives_are_replaced_where_torch_has_them(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    config.patch_for_hcom()
    assert packages.asked == [("torchair", "patch_for_hcom", (), {})]
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="this torch is built without it"):
        config.patch_for_hcom()
    assert len(packages.asked) == 1


def test_which_collectives_are_torchairs_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts.patched() == ()

    def replaced() -> None:
        pass

    replaced.__module__ = "torchair.distributed"
    monkeypatch.setattr(torch.distributed, "all_to_all", replaced)
    monkeypatch.setattr(torch.distributed, "all_reduce", replaced)
    monkeypatch.setattr(torch.distributed, "broadcast", None)
    assert facts.patched() == ("all_reduce", "all_to_all")


def test_the_files_below_a_folder_are_told_by_their_path_in_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z.txt", "b/a.txt"):
        (tmp_path / name).touch()
    assert facts.written(tmp_path) == ("b/a.txt", "z.txt")
    assert facts.written(tmp_path / "z.txt") == facts.written(None) == facts.written(tmp_path / "no") == ()


def test_dump_options_are_written_into_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    converter: Any = ModuleType("torchair._ge_concrete_graph.fx2ge_converter")
    graphs: Any = ModuleType("torchair._ge_concrete_graph")
    graphs.fx2ge_converter = converter
    monkeypatch.setitem(sys.modules, "torchair", ModuleType("torchair"))
    monkeypatch.setitem(sys.modules, "torchair._ge_concrete_graph", graphs)
    config.dump_options_into(tmp_path)
    assert converter.Path.cwd() == tmp_path
    assert converter.Path("a") == Path("a")


# Hooks.


def hooked(error: Exception | None = None) -> tuple[Any, PassHooks, Any, list[str]]:
    order: list[str] = []
    compilation = SimpleNamespace(passes=(), passes_s=0.0, settle=lambda: order.append("settle"))
    backend = Backend(
        pre=Pipeline("pre", order, error), post=Pipeline("post", order), constants="constants",
        begin=lambda graph_module: order.append("begin") or compilation,
        finish=lambda compilation, graph_module: order.append("finish"),
    )  # fmt: skip
    return backend, PassHooks(backend), compilation, order  # type: ignore[arg-type]


GRAPH = SimpleNamespace(graph=SimpleNamespace(nodes=[1, 2, 3]))


def test_passes_run_in_both_hooks_and_are_recorded_with_their_graph() -> None:
    _, hooks, compilation, order = hooked()
    hooks.before(GRAPH, "inputs", "config")
    spent = compilation.passes_s
    assert spent > 0
    hooks.after(GRAPH, "others", "config")
    assert order == [
        "begin", "pre inputs config constants", "post others config constants", "finish", "settle",
    ]  # fmt: skip
    assert compilation.passes == ("record of pre", "record of post")
    assert compilation.passes_s > spent
    with pytest.raises(AssertionError):
        hooks.after(GRAPH, "no graph is open", "config")


def test_a_refusal_of_ours_is_kept_and_goes_on() -> None:
    refusal = ConfigError("not this graph")
    backend, hooks, _, _ = hooked(refusal)
    with pytest.raises(ConfigError):
        hooks.before(GRAPH, "inputs", "config")
    assert backend.refusal is refusal
    backend, hooks, _, _ = hooked(ValueError("else"))
    with pytest.raises(ValueError, match="else"):
        hooks.before(GRAPH, "inputs", "config")
    assert backend.refusal is None


# Facts.


def test_the_genuine_objects_account_is_made_plain() -> None:
    value = object()
    assert facts.plain_options({"a": True, 2: 3, "c": 0.5, "d": "text", "e": None, "f": value}) == {
        "a": True, "2": 3, "c": 0.5, "d": "text", "e": "None", "f": str(value),
    }  # fmt: skip
    assert facts.plain_options(({"a": 1}, {"b": [2]})) == {"local": {"a": 1}, "global": {"b": "[2]"}}
