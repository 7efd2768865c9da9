"""What a converter's source can call and read: functions and constants of its file and of those that it imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from attrs import field, frozen

Modules = Callable[[str], "SourceFile | None"]
"""What finds a module of TorchAir by its name."""


@frozen(kw_only=True)
class Wheel:
    """What expressions mean in one wheel, besides what Python says."""

    ge: Mapping[str, frozenset[str]] = field(factory=dict[str, "frozenset[str]"])
    """{function of GE: names of its arguments}."""
    made: Mapping[str, ast.expr] = field(factory=dict[str, "ast.expr"])
    """{attribute: its value in a tensor that a converter has just made}."""
    numbers: Mapping[str, int] = field(factory=dict[str, int])
    """{type that torch lacks: torch_npu's number of it}: `torch_npu.hifloat8`."""


def ge_tensor(tree: ast.Module) -> dict[str, ast.expr]:
    """{property: value} of GE's class `Tensor` where `__init__` sets a constant and the property returns it."""
    kinds = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Tensor")
    methods = {one.name: one for kind in kinds for one in kind.body if isinstance(one, ast.FunctionDef)}
    begun = methods["__init__"].body if "__init__" in methods else []
    set_to = {ast.unparse(one.targets[0]): one.value for one in begun if isinstance(one, ast.Assign)}
    found: dict[str, ast.expr] = {}
    for name, method in methods.items():
        last = method.body[-1]
        value = set_to.get(ast.unparse(last.value)) if isinstance(last, ast.Return) and last.value else None
        if len(method.body) == 1 and isinstance(value, ast.Constant | ast.Attribute):
            found[name] = value
    return found


@frozen(eq=False)
class SourceFile:
    """What the converters of one file can call and read: its functions and constants, and those that it imports."""

    wheel: Wheel = field(factory=Wheel)
    functions: Mapping[str, ast.FunctionDef] = field(factory=dict[str, ast.FunctionDef])
    constants: Mapping[str, ast.expr] = field(factory=dict[str, ast.expr])
    imported: Mapping[str, tuple[str, str]] = field(factory=dict[str, "tuple[str, str]"])
    """{name: (module, its name there)}."""
    whole: tuple[str, ...] = ()
    """Modules of which everything is imported."""
    modules: Modules = field(default=lambda _: None)

    @classmethod
    def from_tree(cls, tree: ast.Module, wheel: Wheel, modules: Modules = lambda _: None) -> SourceFile:
        constants = {
            one.targets[0].id: one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }
        taken = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module and not one.level]
        named = [(one.module or "", alias) for one in taken for alias in one.names]
        return cls(
            wheel=wheel,
            functions={one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)},
            constants=constants,
            imported={alias.asname or alias.name: (module, alias.name) for module, alias in named},
            whole=tuple(module for module, alias in named if alias.name == "*"),
            modules=modules,
        )

    def function(self, name: str) -> tuple[ast.FunctionDef, SourceFile] | None:
        found = self._found(name, lambda file, real: real in file.functions, ())
        return None if found is None else (found[1].functions[found[0]], found[1])

    def constant(self, name: str) -> tuple[ast.expr, SourceFile] | None:
        found = self._found(name, lambda file, real: real in file.constants, ())
        return None if found is None else (found[1].constants[found[0]], found[1])

    def _found(
        self, name: str, has: Callable[[SourceFile, str], bool], above: tuple[SourceFile, ...]
    ) -> tuple[str, SourceFile] | None:
        if has(self, name):
            return name, self
        module, real = self.imported.get(name, ("", name))
        for one in (module,) if module else self.whole:
            file = self.modules(one)
            found = None if file is None or file in above else file._found(real, has, (*above, self))
            if found is not None:
                return found
        return None


def ge_functions(source: str) -> dict[str, frozenset[str]]:
    """{function: names of its arguments} of the file that defines GE's functions, which is too large to be parsed."""
    found: dict[str, frozenset[str]] = {}
    head: list[str] = []
    for line in source.splitlines():
        if line.startswith("def "):
            head = [line]
        elif head:
            head.append(line)
        if head and line.partition("#")[0].rstrip().endswith(":"):
            name, names = _signature("\n".join(head))
            found[name] = names
            head = []
    return found


def _signature(head: str) -> tuple[str, frozenset[str]]:
    (function,) = ast.parse(f"{head}\n ...").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    return function.name, frozenset(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))
