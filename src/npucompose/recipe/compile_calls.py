"""The calls that make a configuration, a backend or a compiled model: CompilerConfig, torch.compile, cache_compile."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.recipe.values import Backend, Compile, Config, Const, Dotted, Items, Unknown, Value

if TYPE_CHECKING:
    from npucompose.recipe.genuine import Package
    from npucompose.recipe.reader import _Reader

Args = Sequence[Value]
Keywords = Mapping[str, Value]
WITHOUT_YAML: Mapping[str, str] = {
    "cache_dir": "no YAML takes cache_dir: npucompose keeps what is cached in its own store, a folder an experiment",
    "ge_cache": "no YAML is known for ge_cache of cache_compile, GE's own cache beside TorchAir's",
    "options": "torchair's cache_compile takes any keyword and passes over options: it reads config",
}
"""Keywords of cache_compile that no option says, and why not; any other one has no YAML."""
COMPILE_FX = "npugraph_ex.compile_fx"


def config(reader: _Reader, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Config:
    made = Config(package=package, line=e.lineno, branch=reader.branch)
    reader.facts.configs.append(made)
    return made


def backend(reader: _Reader, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    given = keywords.get("compiler_config", args[0] if args else Const(value=None))
    for name in keywords:
        if name != "compiler_config":
            reader.unread(e, f"no YAML is known for {name} of get_npu_backend")
    if isinstance(given, Const) and given.value is None:
        given = config(reader, package, e, (), {})
    if not isinstance(given, Config):
        reader.unread(e, "it is not known which configuration this is")
        return Unknown(why="a backend of an unknown configuration")
    made = Backend(config=given)
    reader.facts.backends.append(made)
    return made


def compile(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torch.compile(model, backend=…, dynamic=…, fullgraph=…, options=…)."""
    given = keywords.get("backend")
    if isinstance(given, Backend):
        found = given.config
    elif (package := _package(given)) is not None:
        found = config(reader, package, e, (), {})
        _options(reader, found, e, keywords.get("options"))
    else:
        if given is None or (isinstance(given, Const) and isinstance(given.value, str)):
            said = repr(given.value) if isinstance(given, Const) else "torch's own"
            reader.unread(e, f"its backend, {said}, is none of TorchAir's")
        else:
            reader.unread(e, "it is not known which backend this is")
        return Unknown(why="a model compiled otherwise")
    for name in keywords:
        if name not in ("backend", "dynamic", "fullgraph", "options"):
            reader.unread(e, f"no YAML is known for {name} of torch.compile")
    return _compiled(
        reader,
        e,
        Compile(
            config=found,
            dynamic=_keyword(reader, e, keywords, "dynamic", None),
            fullgraph=bool(_keyword(reader, e, keywords, "fullgraph", None)),
            node=e,
        ),
    )


def cache_compile(reader: _Reader, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torchair.inference.cache_compile(model.forward, config=…, dynamic=…, …) and npugraph_ex's, with options=…

    The graph is a whole one whatever `fullgraph` says, and dynamic where nothing is said (torch_npu 2.13.0,
    torchair/inference/_cache_compiler.py). `torch.npu.npugraph_ex.inference.cache_compile` makes its own configuration
    of `options` (torch_npu/npu/npugraph_ex/inference/__init__.py).
    """
    given, by = keywords.get("config"), keywords.get("backend")
    if (given is None or plain_none(given)) and isinstance(by, Backend):
        given = by.config
    if given is None or plain_none(given):
        given = config(reader, package, e, (), {})
    if not isinstance(given, Config):
        reader.unread(e, "it is not known which configuration this is")
        return Unknown(why="a model compiled with an unknown configuration")
    said = {"config", "backend", "dynamic", "fullgraph"}
    if package == "npugraph_ex":
        _options(reader, given, e, keywords.get("options"))
        said.add("options")
    for name in keywords:
        if name not in said:
            reader.unread(e, WITHOUT_YAML.get(name, f"no YAML is known for {name} of cache_compile"))
    if not _keyword(reader, e, keywords, "fullgraph", True):
        reader.unread(e, "cache_compile takes the graph as a whole, whatever fullgraph says")
    dynamic = _keyword(reader, e, keywords, "dynamic", True)
    return _compiled(reader, e, Compile(config=given, dynamic=bool(dynamic), fullgraph=True, node=e, cached=True))


def compile_fx(reader: _Reader, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """npugraph_ex.compile_fx(graph_module, example_inputs, options): a graph that somebody else traced."""
    found = config(reader, package, e, (), {})
    _options(reader, found, e, keywords.get("options", args[2] if len(args) > 2 else None))
    reader.unread(e, "the graph is traced elsewhere: dynamic and fullgraph are said where it is")
    return _compiled(reader, e, Compile(config=found, dynamic=None, fullgraph=False, node=e))


def _compiled(reader: _Reader, e: ast.Call, made: Compile) -> Value:
    if reader.doubt:
        reader.unread(e, f"{reader.doubt}: read as if it were run")
    reader.facts.compiles.append(made)
    return Unknown(why="a compiled model")


def plain_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _package(given: Value | None) -> Package | None:
    """The package of a backend that is given by its name, or by the function that npugraph_ex compiles with."""
    if isinstance(given, Dotted) and given.name.endswith(COMPILE_FX):
        return "npugraph_ex"
    names: Mapping[Any, Package] = {"npu": "torchair", "npugraph_ex": "npugraph_ex"}
    return names.get(given.value) if isinstance(given, Const) and isinstance(given.value, str) else None


def _keyword(reader: _Reader, e: ast.Call, keywords: Keywords, name: str, default: bool | None) -> bool | None:
    value = keywords.get(name, Const(value=default))
    if isinstance(value, Const) and value.value in (True, False, None):
        return value.value
    why = f": {value.why}" if isinstance(value, Unknown) else ""
    reader.unread(e, f"{name} is not a constant{why}")
    return default


def _options(reader: _Reader, made: Config, e: ast.Call, options: Value | None) -> None:
    if options is None or plain_none(options):
        return
    if not isinstance(options, Items):
        reader.unread(e, "its options are not a dict of this script")
        return
    for name, value in options.items.items():
        line = ast.parse(f"options[{name!r}]").body[0]
        reader.option(made, name, value, ast.copy_location(line, e))
