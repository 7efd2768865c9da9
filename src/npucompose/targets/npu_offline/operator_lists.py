"""The lists of operators in an unpacked wheel: GE converters, kernels, meta functions. Parsed, never imported.

What makes a converter one that only raises: its body is one `raise`, or it cannot but call one of GE's functions with
an argument that this lacks.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import yaml
from attrs import evolve

from npucompose import private
from npucompose.input_safety import yaml_loader
from npucompose.machine import cache_dir
from npucompose.ops.catalogue import dtype_numbers
from npucompose.targets.npu_offline.converter_expressions import SourceFile, Wheel, ge_functions, ge_tensor
from npucompose.targets.npu_offline.converter_guards import always, refusing
from npucompose.vendor.converter_conditions import BY_DTYPE, BY_NUMBER
from npucompose.vendor.wheel_operators import GENUINE, LISTS, WHERE, List, WheelLists, known_lists, same_lists

TORCHAIR = Path("torch_npu", "dynamo", "torchair")
CONVERTERS = TORCHAIR / "_ge_concrete_graph" / "ge_converter"
GE_FUNCTIONS = TORCHAIR / "_ge_concrete_graph" / "auto_generated_ge_raw_ops.py"
GE_TYPES = TORCHAIR / "ge" / "_ge_graph.py"
YAML = Path("torch_npu", "csrc", "aten")
LISTED = ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml")
"""What is written by hand, and what torch_npu's code generator made of op-plugin's list with it."""
OF_CANN = ("compat_ir.py", "ge_custom.py")
"""Files of TorchAir whose functions refuse what CANN's own registry lacks."""
OWN = "custom"
"""Section of the operators that torch has not."""
SECTIONS = (OWN, "supported", "symint", "quant", "autograd")
METAS = (
    "op_plugin/meta/*.py",
    "op_plugin/atb/*.py",
    "npu/graphs.py",
    "npu/utils.py",
    "utils/_npu_meta_registration.py",
)
"""Files below torch_npu/ that register meta functions, or define operators in Python."""
_REGISTER, _FAKE = "register_fx_node_ge_converter", "register_fake"
FORM = 4
"""Of what is kept in the cache; another number with every field of WheelLists."""
_UNREAD = "{what}: {why}, so that it is unknown which operators it lists"


class _Unread(Exception):
    """A list has another form than the wheels that are known."""


@cache
def live_lists(tree: Path) -> WheelLists:
    """The lists of the wheel unpacked in `tree`, whatever version it says it is.

    Files that are those of a known version have its lists. Others are read once: what was read is kept in the cache
    under their digest.
    """
    digest = sources_digest(tree)
    same = same_lists(digest)
    if same is not None:
        return known_lists(same)
    kept = cache_dir() / "operator_lists" / f"{digest}.{FORM}.json"
    text = private.read(kept, cache_dir())
    if text is not None:
        return _from_dict(json.loads(text))
    lists = read_lists(tree)
    private.keep(kept, cache_dir(), json.dumps({**attrs.asdict(lists), "metas": sorted(lists.metas)}))
    return lists


def _from_dict(row: dict[str, Any]) -> WheelLists:
    return WheelLists(**{**row, "metas": frozenset(row["metas"])})


def sources_digest(tree: Path) -> str:
    """Of every file that a list is read from."""
    digest = hashlib.sha256()
    listed = (tree / YAML / name for name in LISTED)
    for file in (*_registering(tree), tree / GE_FUNCTIONS, tree / GE_TYPES, *listed, *_meta_files(tree)):
        if file.is_file():
            digest.update(f"{file.relative_to(tree).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def read_lists(tree: Path) -> WheelLists:
    """The lists, each read from the wheel's own files; one that cannot be read is a problem in a sentence."""
    lists = WheelLists()
    readers: Mapping[List, Callable[[Path], dict[str, Any]]] = {
        "converters": _converters, "kernels": _kernels, "metas": _metas,
    }  # fmt: skip
    for name in LISTS:
        try:
            lists = evolve(lists, **readers[name](tree))
        except (_Unread, OSError, SyntaxError, UnicodeDecodeError, yaml.YAMLError) as error:
            why = str(error) if isinstance(error, _Unread) else f"it cannot be read ({type(error).__name__})"
            problem = _UNREAD.format(what=WHERE[name], why=why)
            lists = evolve(lists, problems={**lists.problems, name: problem})
    return lists


# GE converters


def _registering(tree: Path) -> list[Path]:
    """Files that may register converters; a folder of converters that nothing imports is left out (`mkldnn`)."""
    if not (tree / CONVERTERS).is_dir():
        return []
    files = [file for file in sorted((tree / TORCHAIR).rglob("*.py")) if not file.name.startswith("auto_generated")]
    imports = "".join(
        file.read_text(encoding="utf-8") for file in files if file.name == "__init__.py" or "_utils" in file.parts
    )

    def imported(file: Path) -> bool:
        below = file.relative_to(tree / TORCHAIR).parts
        if len(below) < 4 or below[1] != CONVERTERS.name:
            return True
        name = re.escape(below[2])
        return bool(re.search(rf'ge_converter\.{name}\b|ge_converter import {name}\b|submodule\("{name}"\)', imports))

    return [file for file in files if imported(file) or file.parent.name in ("custom", "lite")]


def _converters(tree: Path) -> dict[str, Any]:
    found: dict[str, str] = {}
    refuses: dict[str, str] = {}
    files = _registering(tree)
    types = ast.parse(_text(tree / GE_TYPES))
    numbers = {f"torch_npu.{name}": number for name, number in dtype_numbers(tree / "torch_npu").items()}
    modules = _modules(tree, Wheel(ge=ge_functions(_text(tree / GE_FUNCTIONS)), made=ge_tensor(types), numbers=numbers))
    for file in files:
        text = file.read_text(encoding="utf-8")
        if f"{_REGISTER}(" not in text:
            continue
        parsed = ast.parse(text)
        called = _registered_by_call(parsed)
        source = modules(".".join(file.relative_to(tree / TORCHAIR.parent).with_suffix("").parts)) or SourceFile()
        for function in _functions(parsed):
            for name in (*_registered(function), *called.get(function.name, ())):
                said = _only_raises(function.body)
                condition = "" if said else refusing(function, source)
                found[name] = said or always(condition) or GENUINE
                if condition and found[name] == GENUINE:
                    refuses[name] = condition
    if not found:
        raise _Unread(f"{CONVERTERS} has none" if files else f"there is no {CONVERTERS}")
    return {"converters": found, "refuses": refuses, "ge_types": _ge_types(types)}


def _modules(tree: Path, wheel: Wheel) -> Callable[[str], SourceFile | None]:
    """What parses a module of TorchAir by its name, once; None of what is none of its own, or is no text of theirs."""

    @cache
    def module(name: str) -> SourceFile | None:
        path = tree / TORCHAIR.parent / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        theirs = name.startswith(f"{TORCHAIR.name}.") and not file.name.startswith("auto_generated")
        if not theirs or file.name in OF_CANN or not file.is_file():
            return None
        return SourceFile.from_tree(ast.parse(file.read_text(encoding="utf-8")), wheel, module)

    return module


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _ge_types(tree: ast.Module) -> dict[str, str]:
    """{`torch.int8`, or torch's number of it: `DT_INT8`} of `if dtype == torch.int8: return m.DT_INT8`."""
    found = dict[str, str]()
    for function in _functions(tree):
        for node in ast.walk(function) if function.name in (BY_DTYPE, BY_NUMBER) else ():
            if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.body[0], ast.Return):
                asked, given = node.test.comparators[0], node.body[0].value
                if isinstance(given, ast.Attribute):
                    found[ast.unparse(asked)] = given.attr
    return found


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _registered(function: ast.FunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _last(decorator.func) == _REGISTER and decorator.args:
            name = _operator(decorator.args[0])
            if name:
                yield name


def _registered_by_call(tree: ast.AST) -> dict[str, list[str]]:
    """{function: operators} of `register_fx_node_ge_converter(torch.ops.npu.f.default)(function)`."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and node.func.args and node.args):
            continue
        name = _operator(node.func.args[0]) if _last(node.func.func) == _REGISTER else None
        if name:
            found.setdefault(_last(node.args[0]), []).append(name)
    return found


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _operator(node: ast.expr) -> str | None:
    """`aten::add.Tensor` of `torch.ops.aten.add.Tensor`, `aten::rand.names` of `getattr(torch.ops.aten.rand, "names")`,
    None of what is no operator (`operator.add`), or no overload: a graph calls no `torch.ops.aten.sym_size`."""
    if isinstance(node, ast.Call) and _last(node.func) == "getattr":
        node = ast.Attribute(value=node.args[0], attr=ast.literal_eval(node.args[1]), ctx=ast.Load())
    torch_ops, *parts = ast.unparse(node).split("ops.", 1)
    if torch_ops != "torch." or not parts:
        return None
    namespace, _, rest = parts[0].partition(".")
    name, _, overload = rest.partition(".")
    if not overload and namespace != "higher_order":
        return None
    return f"{namespace}::{name}" + (f".{overload}" if overload not in ("", "default") else "")


def _only_raises(body: list[ast.stmt]) -> str | None:
    """The sentence of a body that is one `raise`; None where it is more."""
    acts = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return _sentence(acts[0]) if len(acts) == 1 and isinstance(acts[0], ast.Raise) else None


def _sentence(raised: ast.Raise) -> str:
    given = raised.exc.args[0] if isinstance(raised.exc, ast.Call) and raised.exc.args else None
    if given is None:
        return ast.unparse(raised)
    if isinstance(given, ast.JoinedStr) and all(isinstance(one, ast.Constant) for one in given.values):
        given = ast.Constant("".join(str(one.value) for one in given.values if isinstance(one, ast.Constant)))
    try:
        return " ".join(str(ast.literal_eval(given)).split())
    except ValueError:
        return ast.unparse(given)


# Kernels


def _kernels(tree: Path) -> dict[str, Any]:
    found: dict[str, str] = {}
    own: set[str] = set()
    for name in LISTED:
        file = tree / YAML / name
        if not file.is_file():
            raise _Unread(f"there is no {YAML / name}")
        listed: Any = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml_loader())
        if not isinstance(listed, dict) or not all(isinstance(listed.get(one), list) for one in (OWN, "supported")):
            raise _Unread(f"{YAML / name} has no lists `{OWN}` and `supported`")
        entries = [(section, *_entry(one)) for section in SECTIONS for one in listed.get(section) or ()]
        own |= {operator for section, operator, _ in entries if section == OWN}
        found |= {f"{'npu' if operator in own else 'aten'}::{operator}": library for _, operator, library in entries}
    for file in _meta_files(tree):
        found |= dict.fromkeys(_defined_in_python(ast.parse(file.read_text(encoding="utf-8"))), "python")
    return {"kernels": found}


def _entry(entry: Any) -> tuple[str, str]:
    """(`gelu.out`, `acl_op, op_api`) of an entry, which is a schema or a name."""
    said: Any = entry.get("func") if isinstance(entry, dict) else entry
    if not isinstance(said, str):
        raise _Unread(f"{YAML} has an entry without a name: {str(entry)[:60]}")
    library = str(entry.get("impl_ns") or "") if isinstance(entry, dict) else ""
    return said.partition("(")[0].strip(), library.removesuffix(", dvm")


def _defined_in_python(tree: ast.Module) -> Iterator[str]:
    """Of `lib = Library("npu", "FRAGMENT")` and `lib.define("name(…) -> …")`."""
    spaces = dict(_libraries(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "define":
            space = spaces.get(_last(node.func.value))
            if space and node.args and isinstance(node.args[0], ast.Constant):
                yield f"{space}::{str(node.args[0].value).partition('(')[0]}"


# Meta functions


def _meta_files(tree: Path) -> list[Path]:
    return [file for pattern in METAS for file in sorted((tree / "torch_npu").glob(pattern))]


def _metas(tree: Path) -> dict[str, Any]:
    files = _meta_files(tree)
    found = {name for file in files for name in _with_meta(ast.parse(file.read_text(encoding="utf-8")))}
    if not found:
        raise _Unread("it has none" if files else "there is none of these files")
    return {"metas": frozenset(found)}


def _libraries(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(variable, namespace) of `m = Library("npu", "IMPL", "Meta")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last(node.value.func) == "Library":
            yield _last(node.targets[0]), str(ast.literal_eval(node.value.args[0]))


def _with_meta(tree: ast.Module) -> Iterator[str]:
    """Of `@impl(m, "name")` and `@register_fake("npu::name")`."""
    spaces = dict(_libraries(tree))
    for function in _functions(tree):
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or not decorator.args:
                continue
            kind, given = _last(decorator.func), decorator.args
            if kind == _FAKE and isinstance(given[0], ast.Constant):
                yield _without_default(str(given[0].value))
            elif kind == "impl" and len(given) > 1 and isinstance(given[1], ast.Constant):
                yield _without_default(f"{spaces.get(_last(given[0]), 'npu')}::{given[1].value}")


def _without_default(name: str) -> str:
    return name.removesuffix(".default")
