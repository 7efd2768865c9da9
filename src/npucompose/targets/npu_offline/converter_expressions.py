"""An expression of a converter's source, made one over the converter's arguments."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from attrs import field, frozen

from npucompose.targets.npu_offline.converter_values import (
    MADE,
    OPEN_PART,
    closed,
    comparison,
    either,
    is_of,
    is_open,
    joint,
    negated,
    of_a_dict,
    of_a_tensor,
    part_of,
    renamed,
    root,
    short,
    themselves,
    written_out,
)
from npucompose.vendor.converter_conditions import BY_DTYPE, BY_NUMBER, CONSTANTS, FUNCTIONS, OF_NUMBER, SIGNS, TYPES

# What a converter's source can call and read: functions and constants of its file and of those that it imports.

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


OF_TENSORS = {"rank": "rank", "dtype": "dtype", "symsize": "symsize", "_symsize": "symsize"}
"""{attribute of a tensor: the property that it is}."""
TRANSLATES = re.compile(r"_to_(ge|torch)_(proto_)?d?type$")
"""Functions of TorchAir from one name of a type to another: all that they refuse is a type that GE lacks."""
_SYMBOLS = ("torch.", "DataType.")

Way = tuple[ast.expr, ...]
"""Conditions that all hold where control is."""


class Expressions(ABC):
    """Those of one converter; a call of GE's functions with an argument that it lacks is noted, as is what raises in a
    function that is called."""

    def __init__(self, file: SourceFile) -> None:
        self.file = self.own = file
        self.inner: dict[str, ast.FunctionDef] = {}
        self.taken: set[str] = set()
        """Names that an expression may hold, which a variable of a loop must not have."""

    @abstractmethod
    def raises(self, way: Way) -> None:
        """The converter raises on this way."""

    @abstractmethod
    def inside(
        self,
        function: ast.FunctionDef,
        file: SourceFile,
        args: list[ast.expr],
        keywords: Mapping[str, ast.expr],
        way: Way,
    ) -> ast.expr:
        """What a function of the wheel gives for these arguments; where it raises, the converter does."""

    def expression(self, node: ast.expr, values: Mapping[str, ast.expr], way: Way) -> ast.expr:
        """The expression over the converter's arguments; open where it is of more than them."""
        return short(self._expression(node, values, way))

    def _expression(self, node: ast.expr, values: Mapping[str, ast.expr], way: Way) -> ast.expr:
        def of(part: ast.expr) -> ast.expr:
            return self.expression(part, values, way)

        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return node
            case ast.Name(id=name):
                return values[name] if name in values else self._constant(name)
            case ast.Attribute():
                return self._attribute(node, values, way)
            case ast.BoolOp(op=sign, values=parts):
                return joint(sign, [of(part) for part in parts])
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return negated(of(part))
            case ast.UnaryOp(op=ast.USub() as sign, operand=part):
                return closed(ast.UnaryOp(sign, of(part)), "operand")
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
                return closed(ast.BinOp(of(left), sign, of(right)), "left", "right")
            case ast.Compare(left=left, ops=signs, comparators=others):
                return comparison(of(left), signs, [of(one) for one in others])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return either(of(test), of(body), of(orelse))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                made = [of(part) for part in parts]
                return OPEN_PART if any(isinstance(part, ast.Starred) for part in parts) else ast.List(made)
            case ast.Dict(keys=keys, values=given) if all(keys):
                return ast.Dict([of(key) for key in keys if key], [of(one) for one in given])
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                parts = [None if one is None else of(one) for one in (lower, upper, step)]
                unknown = any(one is not None and is_open(one) for one in parts)
                return OPEN_PART if unknown else part_of(of(value), ast.Slice(*parts))
            case ast.Subscript(value=value, slice=at):
                return part_of(of(value), of(at))
            case ast.ListComp(elt=each, generators=[loop]) | ast.GeneratorExp(elt=each, generators=[loop]):
                return self._comprehension(each, loop, values, way)
            case ast.Call():
                return self._call(node, values, way)
            case ast.Starred(value=value):
                return of(value)
            case _:
                return OPEN_PART

    def _constant(self, name: str) -> ast.expr:
        """A constant of the file, or of one that it imports, where it stands."""
        found = self.file.constant(name)
        if found is None:
            return OPEN_PART
        here, self.file = self.file, found[1]
        made = self.expression(found[0], {}, ())
        self.file = here
        return made

    def _attribute(self, node: ast.Attribute, values: Mapping[str, ast.expr], way: Way) -> ast.expr:
        name = ast.unparse(node)
        if root(node) not in values:
            if name.startswith(_SYMBOLS):
                return node
            known = self.file.wheel.numbers.get(name, CONSTANTS.get(name))
            if known is not None:
                return ast.Constant(known)
        kind = OF_TENSORS.get(node.attr)
        return of_a_tensor(self.expression(node.value, values, way), kind, self.file.wheel.made) if kind else OPEN_PART

    def _comprehension(
        self, each: ast.expr, loop: ast.comprehension, values: Mapping[str, ast.expr], way: Way
    ) -> ast.expr:
        over, target = self.expression(loop.iter, values, way), renamed(loop.target, self.taken)
        if is_open(over):
            return over
        inside, names = {**values, **themselves(loop.target, target)}, set(themselves(target, target))
        self.taken |= names
        conditions = [self.expression(one, inside, way) for one in loop.ifs]
        made = ast.ListComp(self.expression(each, inside, way), [ast.comprehension(target, over, conditions, 0)])
        self.taken -= names
        return made

    def _call(self, node: ast.Call, values: Mapping[str, ast.expr], way: Way) -> ast.expr:
        name = ast.unparse(node.func)
        if name == "isinstance" and len(node.args) == 2:
            types = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            known = all(ast.unparse(one) in TYPES for one in types)
            return is_of(self.expression(node.args[0], values, way), node.args[1]) if known else OPEN_PART
        if name == "utils.type_to_dtype" and isinstance(node.args[0], ast.Call):
            number = self.expression(node.args[0].args[0], values, way)
            return closed(ast.Call(ast.Name(OF_NUMBER), [number], []), "args")
        args = [self.expression(one, values, way) for one in node.args]
        keywords = {one.arg: self.expression(one.value, values, way) for one in node.keywords if one.arg}
        spread = len(keywords) < len(node.keywords) or any(isinstance(one, ast.Starred) for one in node.args)
        if name.startswith("ge."):
            self._ge(name, keywords, way)
            return MADE
        if name in FUNCTIONS and name not in self.own.functions:
            return OPEN_PART if spread else _called(node.func, name, args, keywords)
        if isinstance(node.func, ast.Attribute):
            given = self.expression(node.func.value, values, way)
            return OPEN_PART if spread else of_a_dict(given, node.func.attr, args)
        translated = TRANSLATES.search(name) and name not in self.own.functions
        found = (self.inner[name], self.file) if name in self.inner else self.file.function(name)
        return OPEN_PART if found is None or spread or translated else self.inside(*found, args, keywords, way)

    def _ge(self, name: str, keywords: Mapping[str, ast.expr], way: Way) -> None:
        takes = self.file.wheel.ge.get(name.removeprefix("ge."))
        for keyword in keywords:
            if takes is not None and keyword not in takes:
                self.raises((*way, ast.Constant(f"{name} takes no {keyword}")))


def _called(function: ast.expr, name: str, args: list[ast.expr], keywords: Mapping[str, ast.expr]) -> ast.expr:
    """The call of a function that conditions may hold."""
    if name in (BY_NUMBER, BY_DTYPE) and len(args) + len(keywords) != 1:
        return OPEN_PART
    out = None if keywords else written_out(name, args)
    if out is not None:
        return out
    known = not any(map(is_open, keywords.values()))
    made = ast.Call(function, args, [ast.keyword(key, one) for key, one in keywords.items()])
    return closed(made, "args") if known else OPEN_PART
