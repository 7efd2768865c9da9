"""The calls of torch and TorchAir that a script reader understands; every other call into TorchAir is listed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.recipe import beside_calls, compile_calls
from npucompose.recipe.values import (
    Argument,
    At,
    Backend,
    Config,
    Const,
    Dotted,
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
LEAST_GEAR = 2
SPELLINGS = (
    ("torch_npu.npu", "torch.npu"),
    ("torch_npu.dynamo.torchair", "torchair"),
    ("torch_npu.dynamo.npugraph_ex", "npugraph_ex"),
    ("torch.npu.npugraph_ex", "npugraph_ex"),
)
"""(a package, where the same functions lie too), in torch_npu 2.13.0."""
SILENT = ("scope", "ops", "ge", "core")
"""Parts of torchair and npugraph_ex that a model or a converter calls, and that configure no compilation."""


def called(reader: _Reader, name: str, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """What a call of `name` gives, and what it says about compiling."""
    name = shortest(name)
    last, top = name.rpartition(".")[2], name.partition(".")[0]
    vendor = top in ("torchair", "npugraph_ex")
    if vendor and last in VENDOR:
        return VENDOR[last](reader, "npugraph_ex" if top == "npugraph_ex" else "torchair", e, args, keywords)
    if name in KNOWN:
        return KNOWN[name](reader, e, args, keywords)
    if last == "compile" and _is_ours(keywords.get("backend")):  # torch.nn.Module.compile takes the same keywords
        return compile_calls.compile(reader, e, args, keywords)
    if last == "graph_pool_handle":
        return Pool()
    parts = name.split(".")
    inner = vendor and ((parts[1:2] and parts[1] in SILENT) or any(part.startswith("_") for part in parts))
    if inner and parts[1] in ("scope", "ops"):
        beside_calls.in_a_model(reader, last, e)
    if (vendor and not inner) or name.startswith(("torch._dynamo.mark", "torch._dynamo.maybe_mark")):
        reader.unread(e, f"no YAML is known for {name}")
    passed_on = [v for v in (*args, *keywords.values()) if isinstance(v, (Config, At, Backend))]
    if passed_on and not vendor:
        what = "backend" if isinstance(passed_on[0], Backend) else "configuration"
        reader.unread(e, f"a {what} is handed to code that is not in this script")
    said = name if "." in name or isinstance(e.func, ast.Name) else reader.code(e.func)
    return Unknown(why=f"{said}() is known only when the script runs")


def shortest(name: str) -> str:
    """One name for each of the ways to one function: `torch_npu.dynamo.torchair.x` is torchair.x."""
    for long, short in SPELLINGS:
        name = short + name.removeprefix(long) if name.startswith(long) else name
    return name


def _is_ours(backend: Value | None) -> bool:
    return isinstance(backend, Backend) or (isinstance(backend, Const) and backend.value in ("npu", "npugraph_ex"))


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
        kept = {dim: tuple(size for size in sizes if size >= LEAST_GEAR) for dim, sizes in gears.items()}
        if kept != {dim: tuple(sizes) for dim, sizes in gears.items()}:
            reader.unread(
                e, "torch makes a size of 1 a constant: YAML takes two or more gears of at least 2, without it"
            )
        if all(len(sizes) > 1 for sizes in kept.values()):
            reader.facts.gears.append(GearsCall(argument=name, gears=kept))
    return Const(value=None)


def _are_gears(sizes: Any) -> bool:
    return isinstance(sizes, list) and 2 <= len(sizes) <= 100 and all(type(s) is int and s >= 1 for s in sizes)


VENDOR: Mapping[str, Callable[[Any, Any, ast.Call, Args, Keywords], Value]] = {
    "CompilerConfig": compile_calls.config,
    "get_npu_backend": compile_calls.backend,
    "cache_compile": compile_calls.cache_compile,
    "compile_fx": compile_calls.compile_fx,
    "set_dim_gears": _set_dim_gears,
    "patch_for_hcom": beside_calls.patch_for_hcom,
    "register_replacement": beside_calls.register_replacement,
}


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
    return Items(items={**(spread(args[0]) if args else {}), **with_keywords(keywords)}, branch=reader.branch)


def _partial(reader: _Reader, e: ast.Call, args: Args, keywords: Keywords) -> Value:
    """functools.partial(torch.compile, backend=…) says all that the call will say; the model comes later."""
    if args and isinstance(args[0], Dotted):
        return called(reader, args[0].name, e, args[1:], keywords)
    return Unknown(why="functools.partial() is known only when the script runs")


KNOWN: Mapping[str, Callable[[Any, ast.Call, Args, Keywords], Value]] = {
    "torch.compile": compile_calls.compile,
    "torch.npu.set_compile_mode": beside_calls.set_compile_mode,
    "os.getenv": beside_calls.getenv,
    "os.environ.get": beside_calls.getenv,
    "types.SimpleNamespace": beside_calls.namespace,
    "argparse.Namespace": beside_calls.namespace,
    "torch._dynamo.mark_static": _mark_static,
    "torch._dynamo.mark_dynamic": _mark_dynamic,
    "torch._logging.set_logs": _set_logs,
    "torch.utils._pytree.tree_leaves": _first,
    "logging.getLogger": _get_logger,
    "setattr": _setattr,
    "getattr": _getattr,
    "dict": _dict,
    "functools.partial": _partial,
    **dict.fromkeys(("int", "bool", "str", "float"), beside_calls.converted),
}
