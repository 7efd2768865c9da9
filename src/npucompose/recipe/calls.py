"""The calls of torch and TorchAir that a script reader understands; every other call into TorchAir is listed.

CompilerConfig, torch.compile and cache_compile make configurations, backends and compiled models; marks and gears say
shapes. `patch_for_hcom` has its place in YAML; the mode of eager operators, patterns, scopes and events of a model's
own code have none, or lie in the model, which keeps them: each is a line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from npucompose.recipe.marks import (
    arguments_known,
    environment,
    in_a_model,
    mark_dynamic,
    mark_static,
    patch_for_hcom,
    register_replacement,
    set_compile_mode,
    set_dim_gears,
    set_logs,
)
from npucompose.recipe.paths import Paths, alternatives
from npucompose.recipe.python_calls import Args, Keywords
from npucompose.recipe.values import (
    REST,
    At,
    CompileCall,
    Config,
    Const,
    Def,
    Dotted,
    Items,
    Object,
    PoolHandle,
    ScriptBackend,
    Unknown,
    Value,
    why_not,
)
from npucompose.recipe.vendor_options import HOOKS, Package
from npucompose.vendor.compiler import LEAVES

SPELLINGS = (
    ("torch_npu.npu", "torch.npu"),
    ("torch_npu.dynamo.torchair", "torchair"),
    ("torch_npu.dynamo.npugraph_ex", "npugraph_ex"),
    ("torch.npu.npugraph_ex", "npugraph_ex"),
)
"""(a package, where the same functions lie too), in torch_npu 2.13.0."""
SILENT = ("scope", "ops", "ge", "core")
"""Parts of torchair and npugraph_ex that a model or a converter calls, and that configure no compilation."""
WITHOUT_YAML: Mapping[str, str] = {
    "cache_dir": "no YAML takes cache_dir: npucompose keeps what is cached in its own store, a folder an experiment",
    "ge_cache": "no YAML is known for ge_cache of cache_compile, GE's own cache beside TorchAir's",
    "options": "torchair's cache_compile takes any keyword and passes over options: it reads config",
}
"""Keywords of cache_compile that no option says, and why not; any other one has no YAML."""
COMPILE_FX = "npugraph_ex.compile_fx"
PATCHING_MODULE = "patch_for_hcom_allreduce"
"""A module of torchair that patches torch.distributed.all_reduce where it is imported
(torchair/ge_concrete_graph/ge_converter/experimental/patch_for_hcom_allreduce.py)."""


def called(reader: Paths, name: str, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """What a call of `name` gives, and what it says about compiling."""
    name = shortest(name)
    last, top = name.rpartition(".")[2], name.partition(".")[0]
    vendor = top in ("torchair", "npugraph_ex")
    if vendor and last in VENDOR:
        return VENDOR[last](reader, "npugraph_ex" if top == "npugraph_ex" else "torchair", e, args, keywords)
    if name in KNOWN:
        return KNOWN[name](reader, e, args, keywords)
    if last == "compile" and "backend" in keywords:  # torch.nn.Module.compile takes the same keywords
        return compile(reader, e, args, keywords)
    if last == "graph_pool_handle":
        return PoolHandle()
    parts = name.split(".")
    inner = vendor and ((parts[1:2] and parts[1] in SILENT) or any(part.startswith("_") for part in parts))
    if inner and parts[1] in ("scope", "ops"):
        in_a_model(reader, last, e)
    if (vendor and not inner) or name.startswith(("torch._dynamo.mark", "torch._dynamo.maybe_mark")):
        reader.unread(e, f"no YAML is known for {name}")
    if not vendor and last in ("CompilerConfig", "get_npu_backend", "cache_compile"):
        reader.unread(e, f"it is not known where {last} comes from")
    passed_on = [v for v in (*args, *keywords.values()) if isinstance(v, (Config, At, ScriptBackend))]
    if passed_on and not vendor:
        what = "backend" if isinstance(passed_on[0], ScriptBackend) else "configuration"
        reader.unread(e, f"a {what} is handed to code that is not in this script")
        reader.facts.elsewhere[e.lineno] = reader.short(e)
    said = name if "." in name or isinstance(e.func, ast.Name) else reader.code(e.func)
    return Unknown(why=f"{said}() is known only when the script runs")


def shortest(name: str) -> str:
    """One name for each of the ways to one function: `torch_npu.dynamo.torchair.x` is torchair.x."""
    for long, short in SPELLINGS:
        name = short + name.removeprefix(long) if name.startswith(long) else name
    return name


def compared_with_none(e: ast.Compare, value: Value) -> Value | None:
    """`value is None`, or `is not`, of what is certainly an object; None for any other comparison."""
    vendor = isinstance(value, Dotted) and shortest(value.name).rpartition(".")[2] in VENDOR
    is_object = vendor or isinstance(value, (Config, ScriptBackend, Items, Def, Object))
    answer = {ast.Is: Const(value=False), ast.IsNot: Const(value=True)}.get(type(e.ops[0]))
    return answer if is_object and ast.unparse(e.comparators[0]) == "None" else None


def config(reader: Paths, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Config:
    arguments_known(reader, e, args, keywords, 0, ())
    made = reader.made(e, Config, package=package, line=e.lineno)
    reader.facts.configs.append(made)
    return made


def backend(reader: Paths, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    given = keywords.get("compiler_config", args[0] if args else Const(value=None))
    arguments_known(reader, e, args, keywords, 1, ("compiler_config",))

    def of(given: Value) -> Value:
        found = config(reader, package, e, (), {}) if plain_none(given) else given
        if not isinstance(found, Config):
            return _unknown_configuration(reader, e, "a backend of an unknown configuration")
        made = ScriptBackend(config=found)
        reader.facts.backends.append(made)
        return made

    return reader.choice(given, of)


def _unknown_configuration(reader: Paths, e: ast.Call, what: str) -> Value:
    reader.unread(e, "it is not known which configuration this is")
    reader.facts.elsewhere[e.lineno] = reader.short(e)
    return Unknown(why=what)


def compile(reader: Paths, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torch.compile(model, backend=…, dynamic=…, fullgraph=…, options=…)."""
    arguments_known(reader, e, args, keywords, 1, ("model", "backend", "dynamic", "fullgraph", "options"))

    def by(given: Value) -> Value:
        package = _package(given)
        if isinstance(given, ScriptBackend):
            found = given.config
        elif package is not None:
            found = config(reader, package, e, (), {})
        else:
            text = isinstance(given, Const) and isinstance(given.value, (str, type(None)))
            said = repr(given.value) if isinstance(given, Const) and given.value is not None else "torch's own"
            reader.unread(
                e, f"its backend, {said}, is none of TorchAir's" if text else "it is not known which backend this is"
            )
            reader.facts.elsewhere |= {} if text else {e.lineno: reader.short(e)}
            return Unknown(why="a model compiled otherwise")
        _options(reader, found, e, keywords.get("options"))
        dynamic, fullgraph = (
            _keyword(reader, e, keywords, "dynamic", None),
            _keyword(reader, e, keywords, "fullgraph", False),
        )
        return _compiled(reader, e, found, keywords.get("options"), dynamic=dynamic, fullgraph=fullgraph)

    return reader.choice(keywords.get("backend", Const(value=None)), by)


def cache_compile(reader: Paths, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torchair.inference.cache_compile(model.forward, config=…, dynamic=…, …) and npugraph_ex's, with options=…

    The graph is a whole one whatever `fullgraph` says, and dynamic where nothing is said (torch_npu 2.13.0,
    torchair/inference/_cache_compiler.py). `torch.npu.npugraph_ex.inference.cache_compile` makes its own configuration
    of `options` (torch_npu/npu/npugraph_ex/inference/__init__.py).
    """
    given, by = keywords.get("config", Const(value=None)), keywords.get("backend")
    given = by.config if plain_none(given) and isinstance(by, ScriptBackend) else given
    taken = ("config", "backend", "dynamic", "fullgraph", *(["options"] if package == "npugraph_ex" else []))
    for name in WITHOUT_YAML:
        if name in keywords and name not in taken:
            reader.unread(e, WITHOUT_YAML[name])
    arguments_known(reader, e, args, keywords, 1, ("func", *taken, *WITHOUT_YAML))

    def of(given: Value) -> Value:
        found = config(reader, package, e, (), {}) if plain_none(given) else given
        if not isinstance(found, Config):
            return _unknown_configuration(reader, e, "a model compiled with an unknown configuration")
        options = keywords.get("options") if "options" in taken else None
        _options(reader, found, e, options)
        if _keyword(reader, e, keywords, "fullgraph", True) is not True:
            reader.unread(e, "cache_compile takes the graph as a whole, whatever fullgraph says")
        dynamic = _keyword(reader, e, keywords, "dynamic", True)
        dynamic = dynamic if isinstance(dynamic, Unknown) else bool(dynamic)
        return _compiled(reader, e, found, options, dynamic=dynamic, fullgraph=True, cached=True)

    return reader.choice(given, of)


def compile_fx(reader: Paths, package: Package, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """npugraph_ex.compile_fx(graph_module, example_inputs, options): a graph that somebody else traced."""
    arguments_known(reader, e, args, keywords, 3, ("graph_module", "example_inputs", "options"))
    found = config(reader, package, e, (), {})
    options = keywords.get("options", args[2] if len(args) > 2 else None)
    _options(reader, found, e, options)
    why = "the graph is traced elsewhere: dynamic and fullgraph are said where it is"
    reader.unread(e, why)
    return _compiled(reader, e, found, options, dynamic=Unknown(why=why), fullgraph=Unknown(why=why))


def _compiled(reader: Paths, e: ast.Call, found: Config, options: Value | None, **keywords: Any) -> Value:
    if reader.doubt:
        reader.unread(e, f"{reader.doubt}: read as if it were run")
    made = reader.made(e, CompileCall, config=found, node=e, rival=reader.rival, **keywords)
    for path, cell in found.cells.items():
        if not path.startswith("#"):
            reader.put(made.cells, path, cell)
    reader.put(found.cells, f"#{id(made.cells)}", made)
    reader.facts.compiles.append(made)
    for given in alternatives(options) if options is not None else ():
        if isinstance(given, Items):
            reader.watch(given.items, made.cells, "npugraph_ex." if found.package == "npugraph_ex" else "")
    return Unknown(why="a compiled model")


def plain_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _package(given: Value | None) -> Package | None:
    """The package of a backend that is given by its name, or by the function that npugraph_ex compiles with."""
    if isinstance(given, Dotted) and given.name.endswith(COMPILE_FX):
        return "npugraph_ex"
    names: Mapping[Any, Package] = {"npu": "torchair", "npugraph_ex": "npugraph_ex"}
    return names.get(given.value) if isinstance(given, Const) and isinstance(given.value, str) else None


def _keyword(reader: Paths, e: ast.Call, keywords: Keywords, name: str, default: bool | None) -> Any:
    """A keyword's value, or an Unknown."""
    value = keywords.get(name, Const(value=default))
    if REST in keywords and name not in keywords:
        return Unknown(why=str(keywords[REST]))
    if isinstance(value, Const) and value.value in (True, False, None):
        return value.value if value.value is None else bool(value.value)
    why = f": {value}" if isinstance(value, Unknown) else ""
    reader.unread(e, f"{name} is not a constant{why}")
    return Unknown(why=f"{name} is not a constant{why}")


def _options(reader: Paths, made: Config, e: ast.Call, options: Value | None) -> None:
    """The entries of a dict, set on a configuration; of several dicts, what they have in common."""

    def take(options: Value) -> None:
        if not isinstance(options, Items):
            reader.option(made, REST, Unknown(why=f"its options are not a dict of this script: {why_not(options)}"), e)
            return
        for name, value in options.items.items():
            if name == REST:
                reader.option(made, REST, evolve(value, why=f"it may hold other options: {value}"), e)
                continue
            at = value.node if isinstance(value, Const) and hasattr(value.node, "lineno") else e
            line = ast.copy_location(ast.parse(f"options[{name!r}]").body[0], at)
            leaf = LEAVES.get(f"npugraph_ex.{name}")
            if made.package == "npugraph_ex" or name in HOOKS:
                reader.option(made, name, value, line)
            elif leaf is None or leaf.twin is None:
                reader.unread(line, "torchair takes npugraph_ex's names here, and has no counterpart of this one")
            elif leaf.twin_inverted and isinstance(value, Const):
                reader.option(made, leaf.twin, Const(value=not value.value), line)
            else:
                reader.option(made, leaf.twin, value, line)

    if options is not None and not plain_none(options):
        reader.each(options, take)


def process_kwargs_options(reader: Paths, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """_process_kwargs_options(config, {"options": {…}}): the options of torch.compile, set on a configuration."""
    made = args[0] if args else keywords.get("config")
    given = args[1] if len(args) > 1 else keywords.get("kwargs")
    if isinstance(made, Config):
        options = given.items.get("options", given.items.get(REST)) if isinstance(given, Items) else given
        _options(reader, made, e, options)
    else:
        reader.unread(e, "it is not known which configuration this is")
    return Const(value=None)


VENDOR: Mapping[str, Callable[[Any, Any, ast.Call, Args, Keywords], Value]] = {
    "CompilerConfig": config,
    "get_npu_backend": backend,
    "cache_compile": cache_compile,
    "compile_fx": compile_fx,
    "set_dim_gears": set_dim_gears,
    "patch_for_hcom": patch_for_hcom,
    "_process_kwargs_options": process_kwargs_options,
    "register_replacement": register_replacement,
}
KNOWN: Mapping[str, Callable[[Any, ast.Call, Args, Keywords], Value]] = {
    "torch.compile": compile,
    "torch.npu.set_compile_mode": set_compile_mode,
    "torch._dynamo.mark_static": mark_static,
    "torch._dynamo.mark_dynamic": mark_dynamic,
    "torch._logging.set_logs": set_logs,
    **dict.fromkeys(
        ("os.putenv", "os.unsetenv", *(f"os.environ.{name}" for name in ("setdefault", "update", "pop", "clear"))),
        environment,
    ),
}
