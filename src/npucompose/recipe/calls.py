"""The calls of torch and TorchAir that a script reader understands; every other call into TorchAir is listed.

CompilerConfig, torch.compile and cache_compile make configurations, backends and compiled models; marks and gears say
shapes. `patch_for_hcom` has its place in YAML; the mode of eager operators, patterns, scopes and events of a model's
own code have none, or lie in the model, which keeps them: each is a line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import evolve

from npucompose.recipe.marks import (
    NONE,
    bound,
    environment,
    in_a_model,
    mark_dynamic,
    mark_static,
    of_a_logger,
    patch_for_hcom,
    set_dim_gears,
    set_logs,
)
from npucompose.recipe.paths import Paths, alternatives
from npucompose.recipe.python_calls import Args, Keywords
from npucompose.recipe.values import (
    LOGGER,
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
    plain,
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
NO_YAML: Mapping[str, str] = {
    "register_replacement": "a replacement is Python: passes=replace has the known ones, and a pattern of your own is "
    "registered for it (docs/adding_a_pass.md)",
    "set_compile_mode": "it is about operators outside of a graph, for the whole process: no YAML is known for it",
}
"""Functions that no option says, and why not; any other one has no YAML."""
WATCHED = ("torch._dynamo.mark", "torch._dynamo.maybe_mark", "torch.npu.set_compile_mode")
"""How the names of functions of torch begin of which none is passed over."""
COMPILE_FX = "npugraph_ex.compile_fx"
PATCHING_MODULE = "patch_for_hcom_allreduce"
"""A module of torchair that patches torch.distributed.all_reduce where it is imported
(torchair/ge_concrete_graph/ge_converter/experimental/patch_for_hcom_allreduce.py)."""


def called(reader: Paths, name: str, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """What a call of `name` gives, and what it says about compiling."""
    if name.startswith(f"{LOGGER}("):
        return of_a_logger(reader, name, e, args)
    name = shortest(name)
    last, top = name.rpartition(".")[2], name.partition(".")[0]
    vendor = top in ("torchair", "npugraph_ex")
    by_name = "torch.compile" if last == "compile" and "backend" in keywords else name  # torch.nn.Module.compile, too
    act, signature = VENDOR.get(last if vendor else "", KNOWN.get(by_name, (None, "")))
    if act is not None:
        package: Package = "npugraph_ex" if top == "npugraph_ex" else "torchair"
        return act(reader, package, e, bound(reader, e, args, keywords, signature))
    if last == "graph_pool_handle":
        return PoolHandle()
    parts = name.split(".")
    inner = vendor and ((parts[1:2] and parts[1] in SILENT) or any(part.startswith("_") for part in parts))
    if inner and parts[1] in ("scope", "ops"):
        in_a_model(reader, last, e)
    if (vendor and not inner) or name.startswith(WATCHED):
        cut = reader.short(e).endswith("...")
        also = f"; it is given {', '.join(keywords)}" if last in NO_YAML and cut else ""
        reader.unread(e, NO_YAML.get(last, f"no YAML is known for {name}") + also)
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


def config(reader: Paths, package: Package, e: ast.Call, given: Keywords) -> Config:
    made = reader.made(e, Config, package=package, line=e.lineno)
    reader.facts.configs.append(made)
    return made


def _configuration(reader: Paths, package: Package, e: ast.Call, given: Value) -> Config | None:
    """The one that is given, or a new one where none is; None, and a line, where it is not known."""
    found = config(reader, package, e, {}) if plain_none(given) else given
    if isinstance(found, Config):
        return found
    reader.unread(e, "it is not known which configuration this is")
    reader.facts.elsewhere[e.lineno] = reader.short(e)
    return None


def backend(reader: Paths, package: Package, e: ast.Call, given: Keywords) -> Value:
    def of(one: Value) -> Value:
        found = _configuration(reader, package, e, one)
        if found is None:
            return Unknown(why="a backend of an unknown configuration")
        reader.facts.backends.append(ScriptBackend(config=found))
        return reader.facts.backends[-1]

    return reader.choice(given.get("compiler_config", NONE), of)


def compile(reader: Paths, package: Package, e: ast.Call, given: Keywords) -> Value:
    """torch.compile(model, backend=…, dynamic=…, fullgraph=…, options=…)."""

    def by(one: Value) -> Value:
        of = _package(one)
        if isinstance(one, ScriptBackend) or of is not None:
            found = one.config if isinstance(one, ScriptBackend) else config(reader, of or package, e, {})
            _options(reader, found, e, given.get("options", NONE))
            dynamic, fullgraph = (_keyword(reader, e, given, *one) for one in (("dynamic", None), ("fullgraph", False)))
            return _compiled(reader, e, found, given, dynamic=dynamic, fullgraph=fullgraph)
        text = isinstance(one, Const) and isinstance(one.value, (str, type(None)))
        said = "torch's own" if plain_none(one) else repr(getattr(one, "value", ""))
        reader.unread(
            e, f"its backend, {said}, is none of TorchAir's" if text else "it is not known which backend this is"
        )
        reader.facts.elsewhere |= {} if text else {e.lineno: reader.short(e)}
        return Unknown(why="a model compiled otherwise")

    return reader.choice(given.get("backend", NONE), by)


def cache_compile(reader: Paths, package: Package, e: ast.Call, given: Keywords) -> Value:
    """torchair.inference.cache_compile(model.forward, config=…, dynamic=…, …) and npugraph_ex's, with options=…

    The graph is a whole one whatever `fullgraph` says, and dynamic where nothing is said (torch_npu 2.13.0,
    torchair/inference/_cache_compiler.py). `torch.npu.npugraph_ex.inference.cache_compile` makes its own configuration
    of `options` (torch_npu/npu/npugraph_ex/inference/__init__.py).
    """
    own, by = given.get("config", NONE), given.get("backend")
    for name in given:
        if name in WITHOUT_YAML and (package, name) != ("npugraph_ex", "options"):
            reader.unread(e, WITHOUT_YAML[name])
    given = {name: value for name, value in given.items() if (package, name) != ("torchair", "options")}

    def of(one: Value) -> Value:
        found = _configuration(reader, package, e, one)
        if found is None:
            return Unknown(why="a model compiled with an unknown configuration")
        _options(reader, found, e, given.get("options", NONE))
        if _keyword(reader, e, given, "fullgraph", True) is not True:
            reader.unread(e, "cache_compile takes the graph as a whole, whatever fullgraph says")
        dynamic = _keyword(reader, e, given, "dynamic", True)
        dynamic = dynamic if isinstance(dynamic, Unknown) else bool(dynamic)
        return _compiled(reader, e, found, given, dynamic=dynamic, fullgraph=True, cached=True)

    return reader.choice(by.config if plain_none(own) and isinstance(by, ScriptBackend) else own, of)


def compile_fx(reader: Paths, package: Package, e: ast.Call, given: Keywords) -> Value:
    """npugraph_ex.compile_fx(graph_module, example_inputs, options): a graph that was traced elsewhere."""
    found = config(reader, package, e, {})
    _options(reader, found, e, given.get("options", NONE))
    why = "the graph is traced elsewhere: dynamic and fullgraph are said where it is"
    reader.unread(e, why)
    return _compiled(reader, e, found, given, dynamic=Unknown(why=why), fullgraph=Unknown(why=why))


def _compiled(reader: Paths, e: ast.Call, found: Config, given: Keywords, **keywords: Any) -> Value:
    if reader.doubt:
        reader.unread(e, f"{reader.doubt}: read as if it were run")
    place = (e, *[call for call in reader.calls if not isinstance(call, str)])
    made = reader.made(e, CompileCall, package=found.package, config=found, node=e, place=place, **keywords)
    reader.step(len(found.cells))
    for path, cell in found.cells.items():
        if not path.startswith("#"):
            reader.put(made.cells, path, cell)
    reader.put(found.cells, f"#{id(made.cells)}", made)
    reader.facts.compiles.append(made)
    for options in alternatives(given.get("options", NONE)):
        if isinstance(options, Items):
            prefix = "npugraph_ex." if found.package == "npugraph_ex" else ""
            reader.watched.setdefault(id(options.cells), []).append((made.cells, prefix))
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


def _options(reader: Paths, made: Config, e: ast.Call, options: Value) -> None:
    """The entries of a dict, set on a configuration; of several dicts, what they have in common."""

    def take(options: Value) -> None:
        if not isinstance(options, Items):
            reader.option(made, REST, Unknown(why=f"its options are not a dict of this script: {why_not(options)}"), e)
            return
        for name, value in options.cells.items():
            if name == REST:
                reader.option(made, REST, evolve(value, why=f"it may hold other options: {value}"), e)
                continue
            at = value.node if isinstance(value, Const) and hasattr(value.node, "lineno") else e
            line = ast.copy_location(ast.parse(f"options[{name!r}]").body[0], at)
            leaf = LEAVES.get(f"npugraph_ex.{name}")
            twin = leaf.twin if leaf is not None else None
            if made.package == "npugraph_ex" or name in HOOKS:
                reader.option(made, name, value, line)
            elif leaf is None or twin is None:
                reader.unread(line, "torchair takes npugraph_ex's names here, and has no counterpart of this one")
            else:
                inverted = leaf.twin_inverted and isinstance(value, Const)
                reader.option(made, twin, Const(value=not plain(value)) if inverted else value, line)

    if not plain_none(options):
        reader.each(options, take)


def process_kwargs_options(reader: Paths, package: Any, e: ast.Call, given: Keywords) -> Value:
    """_process_kwargs_options(config, {"options": {…}}): the options of torch.compile, set on a configuration."""
    made, more = given.get("config"), given.get("kwargs", NONE)
    if isinstance(made, Config):
        found = more.cells.get("options", more.cells.get(REST, NONE)) if isinstance(more, Items) else more
        _options(reader, made, e, found)
    else:
        reader.unread(e, "it is not known which configuration this is")
    return NONE


Act: TypeAlias = Callable[[Any, Any, Any, Keywords], Value]
VENDOR: Mapping[str, tuple[Act, str]] = {
    "CompilerConfig": (config, ""),
    "get_npu_backend": (backend, "compiler_config"),
    "cache_compile": (cache_compile, "func * config backend dynamic fullgraph options cache_dir ge_cache"),
    "compile_fx": (compile_fx, "graph_module example_inputs options"),
    "set_dim_gears": (set_dim_gears, "t dim_gears"),
    "patch_for_hcom": (patch_for_hcom, "..."),
    "_process_kwargs_options": (process_kwargs_options, "config kwargs ..."),
}
"""{function: what reads a call of it, its signature as `bound` takes it}."""
CHANGES_ENVIRONMENT = ("putenv", "unsetenv", *(f"environ.{name}" for name in ("setdefault", "update", "pop", "clear")))
KNOWN: Mapping[str, tuple[Act, str]] = {
    "torch.compile": (compile, "model * backend dynamic fullgraph options"),
    "torch._dynamo.mark_static": (mark_static, "t index ..."),
    "torch._dynamo.mark_dynamic": (mark_dynamic, "t index hint min max ..."),
    "torch._logging.set_logs": (set_logs, "..."),
    **dict.fromkeys((f"os.{name}" for name in CHANGES_ENVIRONMENT), (environment, "key value ...")),
}
