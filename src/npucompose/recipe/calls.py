"""The calls of torch and TorchAir that a script reader understands; every other call into TorchAir is listed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.recipe.values import (
    Argument,
    At,
    Backend,
    Compile,
    Config,
    Const,
    GearsCall,
    Items,
    Logger,
    MarkCall,
    Pool,
    Unknown,
    Value,
    plain,
    spread,
    with_keywords,
)

if TYPE_CHECKING:
    from npucompose.recipe.reader import _Reader

Args = Sequence[Value]
Keywords = Mapping[str, Value]
SILENT = ("scope", "ops", "ge", "core")
"""Parts of torchair and npugraph_ex that a model or a converter calls, and that configure no compilation."""


def called(reader: _Reader, name: str, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """What a call of `name` gives, and what it says about compiling."""
    name = name.replace("torch_npu.dynamo.torchair", "torchair").replace("torch_npu.dynamo.npugraph_ex", "npugraph_ex")
    last, top = name.rpartition(".")[2], name.partition(".")[0]
    vendor = top in ("torchair", "npugraph_ex")
    if vendor and last in VENDOR:
        return VENDOR[last](reader, "npugraph_ex" if top == "npugraph_ex" else "torchair", e, args, keywords)
    if name in KNOWN:
        return KNOWN[name](reader, e, args, keywords)
    if last == "graph_pool_handle":
        return Pool()
    parts = name.split(".")
    inner = vendor and ((parts[1:2] and parts[1] in SILENT) or any(part.startswith("_") for part in parts))
    if (vendor and not inner) or name.startswith(("torch._dynamo.mark", "torch._dynamo.maybe_mark")):
        reader.unread(e, f"no YAML is known for {name}")
    passed_on = [v for v in (*args, *keywords.values()) if isinstance(v, (Config, At))]
    if passed_on and not vendor:
        reader.unread(e, "a configuration is handed to code that is not in this script")
    return Unknown(why=f"{name or reader.code(e.func)}() is known only when the script runs")


def _config(reader: _Reader, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    config = Config(package=package, line=e.lineno)
    reader.facts.configs.append(config)
    return config


def _backend(reader: _Reader, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    given = keywords.get("compiler_config", args[0] if args else Const(value=None))
    for name in keywords:
        if name != "compiler_config":
            reader.unread(e, f"no YAML is known for {name} of get_npu_backend")
    if isinstance(given, Const) and given.value is None:
        given = _config(reader, package, e, (), {})
    if not isinstance(given, Config):
        reader.unread(e, "it is not known which configuration this is")
        return Unknown(why="a backend of an unknown configuration")
    backend = Backend(config=given)
    reader.facts.backends.append(backend)
    return backend


def _set_dim_gears(reader: _Reader, package: Any, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torchair.inference.set_dim_gears(x, {0: [32, 64]})."""
    subject = args[0] if args else keywords.get("t")
    given = args[1] if len(args) > 1 else keywords.get("dim_gears")
    name = subject.name if isinstance(subject, (Argument, Unknown)) else ""
    items = given.items if isinstance(given, Items) else {}
    gears = {int(dim): plain(sizes) for dim, sizes in items.items() if dim.isdigit()}
    if reader.doubt:
        reader.unread(e, reader.doubt)
    elif not name:
        reader.unread(e, "it is not known which input this is")
    elif not gears or len(gears) < len(items) or not all(map(_are_gears, gears.values())):
        reader.unread(e, "YAML takes 2 to 100 constant sizes, of at least 1, for each dimension")
    else:
        reader.facts.gears.append(GearsCall(argument=name, gears={dim: tuple(s) for dim, s in gears.items()}))
    return Const(value=None)


def _are_gears(sizes: Any) -> bool:
    return isinstance(sizes, list) and 2 <= len(sizes) <= 100 and all(type(s) is int and s >= 1 for s in sizes)


VENDOR: Mapping[str, Callable[[Any, Any, ast.Call, Args, Keywords], Value]] = {
    "CompilerConfig": _config,
    "get_npu_backend": _backend,
    "set_dim_gears": _set_dim_gears,
}


def _compile(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """torch.compile(model, backend=…, dynamic=…, fullgraph=…, options=…)."""
    backend = keywords.get("backend")
    if isinstance(backend, Backend):
        config = backend.config
    elif isinstance(backend, Const) and backend.value in ("npu", "npugraph_ex"):
        config = Config(package="npugraph_ex" if backend.value == "npugraph_ex" else "torchair", line=e.lineno)
        reader.facts.configs.append(config)
        _options(reader, config, e, keywords.get("options"))
    else:
        if backend is None or (isinstance(backend, Const) and isinstance(backend.value, str)):
            said = repr(backend.value) if isinstance(backend, Const) else "torch's own"
            reader.unread(e, f"its backend, {said}, is none of TorchAir's")
        else:
            reader.unread(e, "it is not known which backend this is")
        return Unknown(why="a model compiled otherwise")
    given = {name: _keyword(reader, e, keywords, name) for name in ("dynamic", "fullgraph")}
    for name in keywords:
        if name not in ("backend", "dynamic", "fullgraph", "options"):
            reader.unread(e, f"no YAML is known for {name} of torch.compile")
    compiled = Compile(config=config, dynamic=given["dynamic"], fullgraph=bool(given["fullgraph"]), node=e)
    reader.facts.compiles.append(compiled)
    return Unknown(why="a compiled model")


def _keyword(reader: _Reader, e: ast.Call, keywords: Keywords, name: str) -> bool | None:
    value = keywords.get(name, Const(value=None))
    if isinstance(value, Const) and value.value in (True, False, None):
        return value.value
    reader.unread(e, f"{name} is not a constant")
    return None


def _options(reader: _Reader, config: Config, e: ast.Call, options: Value | None) -> None:
    if options is None or (isinstance(options, Const) and options.value is None):
        return
    if not isinstance(options, Items):
        reader.unread(e, "its options are not a dict of this script")
        return
    for name, value in options.items.items():
        line = ast.parse(f"options[{name!r}]").body[0]
        reader.option(config, name, value, ast.copy_location(line, e))


def _mark_static(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if len(args) + len(keywords) > 1:
        reader.unread(e, "YAML marks whole tensors as static, not single dimensions")
    else:
        _mark(reader, e, args, None)
    return Const(value=None)


def _mark_dynamic(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    dims = args[1] if len(args) > 1 else keywords.get("index")
    numbers = dims.value if isinstance(dims, Const) else None
    numbers = [numbers] if isinstance(numbers, int) else numbers
    more = len(args) > 2 or set(keywords) - {"index", "t"}
    if more or not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
        reader.unread(e, "YAML takes plain dimensions")
    else:
        _mark(reader, e, args, tuple(numbers))
    return Const(value=None)


def _mark(reader: _Reader, e: ast.Call, args: Args, dims: tuple[int, ...] | None) -> None:
    subject = args[0] if args else None
    name = subject.name if isinstance(subject, (Argument, Unknown)) else ""
    if reader.doubt and not (reader.doubt == "it is in a loop" and isinstance(subject, Argument)):
        reader.unread(e, reader.doubt)
    elif not name:
        reader.unread(e, "it is not known which input this is")
    else:
        reader.facts.marks.append(MarkCall(argument=name, dims=dims))


def _first(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return args[0] if args else Const(value=None)


def _set_logs(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    for name, value in keywords.items():
        if isinstance(value, Const) and value.value is True and not reader.doubt:
            reader.facts.artifacts.append(name)
        else:
            reader.unread(e, reader.doubt or f"YAML can only turn {name} on")
    return Const(value=None)


def _get_logger(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[0]) if args else ""
    return Logger(name=name) if isinstance(name, str) else Unknown(why="a logger of unknown name")


def _setattr(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    if len(args) == 3 and isinstance(args[0], (Config, At)):
        name = plain(args[1])
        if isinstance(name, str):
            reader.option(args[0], name, args[2], e)
        else:
            reader.unread(e, "the option's name is not a constant")
    return Const(value=None)


def _getattr(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    name = plain(args[1]) if len(args) > 1 else None
    if isinstance(name, str) and isinstance(args[0], (Config, At)):
        from npucompose.recipe.values import where_of

        config, path = where_of(args[0], name)
        return At(config=config, path=path)
    return Unknown(why="getattr() is known only when the script runs")


def _dict(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    return Items(items={**(spread(args[0]) if args else {}), **with_keywords(keywords)})


KNOWN: Mapping[str, Callable[[Any, ast.Call, Args, Keywords], Value]] = {
    "torch.compile": _compile,
    "torch._dynamo.mark_static": _mark_static,
    "torch._dynamo.mark_dynamic": _mark_dynamic,
    "torch._logging.set_logs": _set_logs,
    "torch.utils._pytree.tree_leaves": _first,
    "logging.getLogger": _get_logger,
    "setattr": _setattr,
    "getattr": _getattr,
    "dict": _dict,
}
