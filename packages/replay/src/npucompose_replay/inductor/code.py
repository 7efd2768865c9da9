"""The Python code that Inductor generates for a graph, read so that it can be recorded.

All that is internal to torch's Inductor in this stands here: where a compiled graph has its module, by which names
generated code makes buffers and calls kernels, and how a kernel's binding lies in its library (torch 2.7 to 2.14:
torch/_inductor/codegen/wrapper.py, async_compile.cpp_pybinding, codecache.CppPythonBindingsCodeCache). Code that does
anything beside what is known here is not read, and the reason says what it does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from attrs import field, frozen

from npucompose_replay.capture.generated import Observer
from npucompose_replay.generated import GeneratedKernel, address_of, entry, known

EMPTY, LAID = "empty_strided_cpu", "reinterpret_tensor"
CHECKS = frozenset({"assert_size_stride", "assert_size_stride_grouped", "assert_tensor_metadata", "assert_alignment"})
"""They look at sizes, strides, types and addresses (the second and third since torch 2.14)."""
OPERATORS = frozenset({"extern_kernels", "aten", "torch.ops", "inductor_ops", "_quantized"})
"""What is called of these goes through torch's dispatcher."""
ON_NUMBERS = frozenset({"max", "min", "int", "float", "bool", "abs", "math", "device", "torch.device"})
ERRORS = frozenset({"RuntimeError", "AssertionError"})
"""Raised where numbers are not what the graph was compiled for."""
METHODS = frozenset({"size", "stride", "item", "clear", "copy_"})
"""Of tensors and lists; what computes goes through torch's dispatcher too."""
KNOWN = frozenset({EMPTY, LAID}) | CHECKS | ON_NUMBERS | ERRORS
LIBRARY = "__file__"
BINDING = "cpp_pybinding"
ENTRY = "call"
"""The function that takes the list of a graph's inputs."""
LAUNCH = ".run"
"""By which a kernel of Triton's is started."""
PARALLEL = "#pragma omp parallel"


class UnreadCode(Exception):
    """Why code is not read, in words that go on from "its code"."""


@frozen(kw_only=True, eq=False)
class InductorCode:
    """`InductorCode.of(compiled).run(inputs, observer)`: what the compiled graph does, with an onlooker."""

    call: Any
    """The generated function, or method, of a list of inputs."""
    kernels: Mapping[str, GeneratedKernel]
    constants: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, compiled: Any) -> InductorCode | Untouched:
        """The code of what Inductor compiled; UnreadCode where it is none that can be recorded."""
        if not hasattr(compiled, "current_callable"):
            return Untouched(call=compiled)
        call = compiled.current_callable
        function = getattr(call, "__func__", call)
        if not isinstance(function, FunctionType) or not {EMPTY, LAID} <= function.__globals__.keys():
            raise UnreadCode("is not called as Python that Inductor generated")
        if isinstance(call, MethodType) and getattr(call.__self__, "partitions", None):
            raise UnreadCode("is partitioned")
        names = function.__globals__
        module = _source(names)
        parameters = dict(_parameters(module))
        for name in dict.fromkeys(_called(_function(module, function.__name__))):
            _check(name, parameters)
        return cls(
            call=call,
            kernels={name: _kernel(name, names.get(name), *given) for name, given in parameters.items()},
            constants={name: value for name, value in names.items() if isinstance(value, torch.Tensor)},
        )

    def run(self, inputs: list[Any], observer: Observer) -> Sequence[Any]:
        """Runs a copy of the function that has names of its own: nobody else who calls it notices."""
        function = getattr(self.call, "__func__", self.call)
        names = {**function.__globals__, **self._observed(function.__globals__, observer)}
        copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        given = (self.call.__self__, inputs) if isinstance(self.call, MethodType) else (inputs,)
        return copied(*given)

    def _observed(self, names: Mapping[str, Any], observer: Observer) -> dict[str, Any]:
        def launcher(kernel: GeneratedKernel) -> Callable[..., None]:
            return lambda *given: observer.launch(kernel, given)

        def laid(over: torch.Tensor, *form: Any) -> torch.Tensor:
            return observer.laid(names[LAID](over, *form), over)

        def made(*form: Any) -> torch.Tensor:
            return observer.made(names[EMPTY](*form))

        return {**{name: launcher(kernel) for name, kernel in self.kernels.items()}, LAID: laid, EMPTY: made}


@frozen(kw_only=True, eq=False)
class Untouched:
    """A graph in which nothing is called, which Inductor leaves as it is: what comes in, or a constant, comes out."""

    call: Callable[[list[Any]], Sequence[Any]]
    constants: Mapping[str, torch.Tensor] = field(factory=dict)

    def run(self, inputs: list[Any], observer: Observer) -> Sequence[Any]:
        return self.call(inputs)


def launches(compiled: Any) -> int:
    """How many kernels and operators the code that Inductor generated calls; UnreadCode where it shows none."""
    if not hasattr(compiled, "current_callable"):
        return 0  # as Untouched
    try:
        functions = [one for one in ast.walk(ast.parse(compiled.source_code)) if isinstance(one, ast.FunctionDef)]
    except (AttributeError, SyntaxError) as error:
        raise UnreadCode(f"has no source that can be read: {error}") from None
    named = [one for one in functions if one.name == ENTRY]
    if len(named) != 1:
        raise UnreadCode(f"has {len(named)} functions of the name {ENTRY}")
    called = [ast.unparse(node.func) for node in ast.walk(named[0]) if isinstance(node, ast.Call)]
    return sum(name.endswith(LAUNCH) or _is_operator(name) for name in called)


def _source(names: Mapping[str, Any]) -> ast.Module:
    try:
        with open(names["__file__"], encoding="utf-8") as file:
            return ast.parse(file.read())
    except (KeyError, OSError, SyntaxError) as error:
        raise UnreadCode(f"has no source that can be read: {error}") from None


def _function(module: ast.Module, name: str) -> ast.FunctionDef:
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise UnreadCode(f"has {len(found)} functions of the name {name}")
    return found[0]


def _parameters(module: ast.Module) -> Iterator[tuple[str, tuple[tuple[str, ...], bool]]]:
    """(kernel, (the C types of its parameters, whether it may ask for threads)) of each
    `name = async_compile.cpp_pybinding([…], source)`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr == BINDING:
                types, source = node.value.args
                parallel = not isinstance(source, ast.Constant) or PARALLEL in str(source.value)
                yield node.targets[0].id, (tuple(ast.literal_eval(types)), parallel)


def _called(function: ast.FunctionDef) -> Iterator[str]:
    """The dotted names of what a function calls: `extern_kernels.mm`, `torch.ops.aten.topk.default`."""
    for node in ast.walk(function):
        if isinstance(node, (ast.With, ast.Lambda, ast.Import, ast.ImportFrom, ast.Global)):
            raise UnreadCode(f"has a statement that is not known: {ast.unparse(node).splitlines()[0]}")
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def _check(name: str, kernels: Mapping[str, Any]) -> None:
    root, _, last = name.rpartition(".")
    if name in kernels or name in KNOWN or root in ON_NUMBERS:
        return
    if _is_operator(name):
        return
    if root.isidentifier() and last in METHODS:
        return
    raise UnreadCode(f"calls {name}, of which nobody knows what it does")


def _is_operator(name: str) -> bool:
    root, _, _ = name.rpartition(".")
    return any(root == space or root.startswith(f"{space}.") for space in OPERATORS)


def _kernel(name: str, binding: Any, parameters: Sequence[str], parallel: bool) -> GeneratedKernel:
    module = getattr(binding, "__self__", None)
    library = getattr(module, LIBRARY, None)
    if library is None:
        raise UnreadCode(f"has a kernel whose library is not known: {name}")
    try:
        address = address_of(entry(library))
    except AttributeError:
        raise UnreadCode(f"has a kernel that its library does not export: {name}") from None
    order = "".join(_kind(name, parameter) for parameter in parameters)
    return known(
        GeneratedKernel(name=name, order=order, address=address, library=library, binding=binding, parallel=parallel)
    )


def _kind(kernel: str, parameter: str) -> str:
    if parameter.endswith("*"):
        return "r" if parameter.startswith("const ") else "w"
    if parameter.removeprefix("const ") == "int64_t":
        return "n"
    raise UnreadCode(f"has a kernel, {kernel}, with a parameter of type {parameter}")
