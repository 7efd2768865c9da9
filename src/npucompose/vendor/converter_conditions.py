"""The conditions under which a GE converter raises, decided for one call: `x.rank != 4 and not is_arch35()`.

A condition is an expression over the arguments of the converter, as its source has it. What a call gives is written as
Python would write it (`torch.strided`, `[1, 2]`); `tensor(torch.float16, [8, ...])` is a tensor, whose second size is
not known. A condition holds, does not, or is undecided; nothing is run. Loads no torch.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import starmap
from typing import Any, cast

from attrs import frozen

OPEN = "..."
"""What stands in a condition for a part that is no matter of the arguments, and for a size that is not known."""
TENSOR, GIVEN = "tensor", "tensor()"
"""A tensor of which nothing is known but that it is given is `tensor()`."""
ARCH35, RESULTS, META_OUTPUTS = "is_arch35", "results", "meta_outputs"
"""What a condition asks besides the arguments: whether the product is an Ascend 950, how many results there are, and
the one result."""
NOT_950 = f"not {ARCH35}()"
BY_NUMBER, BY_DTYPE = "torch_dtype_value_to_ge_type", "torch_type_to_ge_type"
"""TorchAir's functions from torch's number of a dtype, or from a dtype, to GE's type."""
OF_NUMBER = "dtype_of"
"""The dtype that torch gives a Python number: `type_to_dtype(type(number))` of torch/_prims_common/__init__.py, where
the default dtype is torch's own."""
TENSORS, TORCHS_TENSOR, DTYPE = ("Tensor", "ge.Tensor"), "torch.Tensor", "torch.dtype"
"""Types that a converter asks for. It is never given a tensor of torch's."""
CONSTANTS: Mapping[str, int] = {"sys.maxsize": 2**63 - 1}
"""Of Python where a wheel runs: 64 bits."""

_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_SUMS: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Mod: "mod", ast.FloorDiv: "floordiv", ast.Div: "truediv",
    ast.LShift: "lshift",
}  # fmt: skip
"""{sign: its function in the module `operator`}."""
_CALLED: Mapping[str, Callable[..., Any]] = {
    "len": len, "min": min, "max": max, "abs": abs, "all": all, "any": any, "sum": sum, "list": list, "tuple": list,
    "set": list, "range": lambda *of: list(range(*of)), "zip": lambda *of: list(zip(*of, strict=False)), "int": int,
    "bool": bool, "math.isclose": math.isclose, "math.prod": math.prod,
    "enumerate": lambda *of: [list(one) for one in enumerate(*of)],
}  # fmt: skip
_OF_TYPE: Mapping[str, type | tuple[type, ...]] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": list, "tuple": list, "List": list, "Tuple": list,
    TORCHS_TENSOR: (),
}  # fmt: skip
_NUMBERS: Mapping[type, str] = {
    bool: "torch.bool", int: "torch.int64", float: "torch.float32", complex: "torch.complex64",
}  # fmt: skip
FUNCTIONS = frozenset({*_CALLED, ARCH35, BY_NUMBER, BY_DTYPE, OF_NUMBER, "isinstance"})
SIGNS = frozenset(_SUMS)
TYPES = frozenset({*_OF_TYPE, *TENSORS, DTYPE})


class _Undecided(Exception):
    """The call does not say what the condition asks."""


@frozen
class Symbol:
    """A name of torch's or of GE's that stands for itself: `torch.strided`, `DataType.DT_INT8`."""

    name: str


@frozen
class TensorFact:
    """What a converter sees of a tensor; None and `...` for what is not known."""

    dtype: Symbol | None = None
    symsize: tuple[Any, ...] | None = None


@cache
def guards(conditions: str) -> tuple[str, ...]:
    """The single ones of a row's conditions, of which any makes the converter raise."""
    parsed = _parsed(conditions or "()")
    parsed = parsed.body if isinstance(parsed, ast.Lambda) else parsed
    alone = parsed.values if isinstance(parsed, ast.BoolOp) and isinstance(parsed.op, ast.Or) else [parsed]
    return tuple(map(ast.unparse, alone)) if conditions else ()


def by_place(conditions: str, given: Mapping[str, str], names: Sequence[str]) -> Mapping[str, str]:
    """What a call gives, by the converter's names of its arguments; `names` are the operator's, in order."""
    parsed = _parsed(conditions or "()")
    own = [one.arg for one in parsed.args.args] if isinstance(parsed, ast.Lambda) else []
    renamed = {mine: given[name] for mine, name in zip(own, names, strict=False) if name in given}
    return {**given, **renamed}


def joined(conditions: Iterable[str]) -> str:
    """The row's text of single conditions."""
    return " or ".join(f"({one})" for one in dict.fromkeys(conditions))


def holds(condition: str, given: Mapping[str, str], ge_types: Mapping[str, str] | None = None) -> bool | None:
    """Whether the condition holds of the call, which gives each argument as Python writes it; None where that is
    undecided. `ge_types`: {`torch.int8`, `1`: `DT_INT8`}."""
    found = _holds(condition, given, ge_types or {})
    if found is None and ARCH35 in condition and ARCH35 not in given:
        ways = {_holds(condition, {**given, ARCH35: repr(new)}, ge_types or {}) for new in (True, False)}
        return ways.pop() if len(ways) == 1 else None
    return found


def asks_for_the_product(condition: str, given: Mapping[str, str], ge_types: Mapping[str, str]) -> bool:
    """Whether a condition that is undecided is decided as soon as the product is known, whichever it is."""
    ways = [_holds(condition, {**given, ARCH35: repr(new)}, ge_types) for new in (True, False)]
    return ARCH35 not in given and None not in ways


def _holds(condition: str, given: Mapping[str, str], ge_types: Mapping[str, str]) -> bool | None:
    try:
        return bool(_Decision(given, ge_types).value(_parsed(condition)))
    except _Undecided:
        return None


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class _Decision:
    """One call's values of expressions; those of a comprehension's variables besides."""

    def __init__(
        self, given: Mapping[str, str], ge_types: Mapping[str, str], bound: Mapping[str, Any] | None = None
    ) -> None:
        self.given, self.ge_types, self.bound = given, ge_types, bound or {}

    def value(self, node: ast.expr) -> Any:
        try:
            return self._value(node)
        except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
            raise _Undecided from error

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return _known(value)
            case ast.BoolOp(op=sign, values=parts):
                return self._decided(parts, end=isinstance(sign, ast.Or))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not self.value(part)
            case ast.UnaryOp(operand=part):
                return -self.value(part)
            case ast.BinOp(left=left, op=sign, right=right):
                return getattr(operator, _SUMS[type(sign)])(self.value(left), self.value(right))
            case ast.Compare(left=left, ops=signs, comparators=others):
                values = [self.value(part) for part in (left, *others)]
                return all(starmap(compared, zip(signs, values, values[1:], strict=False)))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._chosen(test, body, orelse)
            case ast.Name(id=name):
                return self._named(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return [self.or_open(part) for part in parts]
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {self.value(key): self.value(one) for key, one in pairs if key is not None}
            case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                return self.value(of)[
                    slice(*(None if part is None else self.value(part) for part in (lower, upper, step)))
                ]
            case ast.Subscript(value=of, slice=at):
                return self._item(self.value(of), self.value(at))
            case ast.ListComp(elt=each, generators=[loop]) | ast.GeneratorExp(elt=each, generators=[loop]):
                return list(self._each(each, loop))
            case ast.Attribute(value=of, attr="rank" | "dtype" | "symsize" as attribute):
                return self._of_tensor(self.value(of), attribute)
            case ast.Call(func=ast.Attribute(value=ast.Dict() as of, attr="get"), args=[key]):
                return self.value(of).get(self.value(key))
            case ast.Call(func=called, args=args, keywords=keywords):
                return self._called(
                    ast.unparse(called), args, {one.arg: self.value(one.value) for one in keywords if one.arg}
                )
            case _:
                return Symbol(ast.unparse(node))

    def or_open(self, node: ast.expr) -> Any:
        """The value, or `...` where it is undecided."""
        try:
            return self.value(node)
        except _Undecided:
            return ...

    def _decided(self, parts: list[ast.expr], *, end: bool) -> Any:
        """Of `and` and `or`: a part that decides is enough, also behind one that is undecided."""
        value, undecided = not end, False
        for part in parts:
            try:
                value = self.value(part)
            except _Undecided:
                undecided = True
                continue
            if bool(value) == end:
                return value
        if undecided:
            raise _Undecided
        return value

    def _chosen(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> Any:
        """What both branches give, where it is undecided which is taken."""
        try:
            decided = bool(self.value(test))
        except _Undecided:
            one, other = self.value(body), self.value(orelse)
            if type(one) is type(other) and _equal(one, other):
                return one
            raise
        return self.value(body if decided else orelse)

    def _named(self, name: str) -> Any:
        if name in self.bound:
            return _known(self.bound[name])
        if name not in self.given:
            raise _Undecided
        return _Decision({}, {}).value(_parsed(self.given[name]))

    def _each(self, each: ast.expr, loop: ast.comprehension) -> Iterator[Any]:
        for one in self.value(loop.iter):
            names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
            values = one if isinstance(loop.target, ast.Tuple) else [one]
            bound = {**self.bound, **dict(zip(map(ast.unparse, names), values, strict=True))}
            inside = _Decision(self.given, self.ge_types, bound)
            if all(inside.value(condition) for condition in loop.ifs):
                yield inside.or_open(each)

    def _item(self, of: Any, at: Any) -> Any:
        if isinstance(of, dict) and at not in of:
            raise _Undecided
        return _known(of[at])

    def _of_tensor(self, tensor: Any, attribute: str) -> Any:
        if not isinstance(tensor, TensorFact):
            raise _Undecided
        if attribute == "dtype":
            return self._ge_type(tensor.dtype.name if tensor.dtype else "")
        if tensor.symsize is None:
            raise _Undecided
        return len(tensor.symsize) if attribute == "rank" else list(tensor.symsize)

    def _ge_type(self, of: str) -> Symbol:
        if of not in self.ge_types:
            raise _Undecided
        return Symbol(f"DataType.{self.ge_types[of]}")

    def _called(self, name: str, args: list[ast.expr], keywords: Mapping[str, Any]) -> Any:
        if name == TENSOR:
            dtype, sizes = map(self.value, args) if args else (None, None)
            return TensorFact(dtype, None if sizes is None else tuple(sizes))
        if name == ARCH35:
            return self._named(ARCH35)
        if name == "isinstance":
            return self._is_of_type(self._unsized(args[0]), args[1])
        values = [self.value(one) for one in args]
        if name in (BY_NUMBER, BY_DTYPE):
            (of,) = values
            return (
                None
                if of is None and name == BY_DTYPE
                else self._ge_type(of.name if isinstance(of, Symbol) else str(of))
            )
        if name == OF_NUMBER:
            return Symbol(_NUMBERS[type(*values)]) if type(*values) in _NUMBERS else _known(...)
        if name in ("any", "all"):
            return _of_all(*values, end=name == "any")
        return _known(_CALLED[name](*values, **keywords))

    def _unsized(self, node: ast.expr) -> Any:
        """A value, or `...` for a size that is not known: of its type it is known that it is none of Python's."""
        if isinstance(node, ast.Name) and self.bound.get(node.id) is ...:
            return ...
        return self.value(node)

    def _is_of_type(self, value: Any, types: ast.expr) -> bool:
        names = [ast.unparse(one) for one in (types.elts if isinstance(types, ast.Tuple) else [types])]
        if DTYPE in names and isinstance(value, Symbol) and value.name in self.ge_types:
            return True
        kinds = (TensorFact if name in TENSORS else _OF_TYPE.get(name, ()) for name in names)
        return any(isinstance(value, kind) for kind in kinds)


def _known(value: Any) -> Any:
    if value is ...:
        raise _Undecided
    return value


def _of_all(values: list[Any], *, end: bool) -> bool:
    """`any` where `end`, else `all`: one that decides is enough, whatever the others are."""
    if any(one is not ... and bool(one) == end for one in values):
        return end
    if ... in values:
        raise _Undecided
    return not end


def compared(sign: ast.cmpop, one: Any, other: Any) -> bool:
    """What a comparison gives: of tensors and of what is not known all of, only what is certain."""
    if isinstance(sign, ast.In | ast.NotIn):
        found = one in other if isinstance(other, str) else _among(one, list(other))
        return found == isinstance(sign, ast.In)
    if isinstance(sign, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        return _equal(one, other) == isinstance(sign, ast.Is | ast.Eq)
    return _ORDER[type(sign)](one, other)


def _among(one: Any, many: list[Any]) -> bool:
    undecided = False
    for value in many:
        try:
            if _equal(one, _known(value)):
                return True
        except _Undecided:
            undecided = True
    if undecided:
        raise _Undecided
    return False


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same; two tensors may be."""
    if one is None or other is None:
        return one is other
    if isinstance(one, TensorFact) or isinstance(other, TensorFact):
        raise _Undecided
    if isinstance(one, list) and isinstance(other, list):
        mine, others = cast("list[Any]", one), cast("list[Any]", other)
        parts = [... if ... in (a, b) else _equal(a, b) for a, b in zip(mine, others, strict=False)]
        return len(mine) == len(others) and _of_all(parts, end=False)
    return one == other
