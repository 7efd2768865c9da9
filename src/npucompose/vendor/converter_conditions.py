"""The conditions on its arguments under which a GE converter raises: `memory_format is not None and memory_format !=
torch.contiguous_format`. Found in a parsed converter, and decided for the constants of one call; nothing is run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Is: operator.eq, ast.IsNot: operator.ne, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
"""`is` compares constants here, which have no identity."""


GIVEN = "..."
"""An argument that is a tensor: of it is known that it is not None."""


def refusing(function: ast.FunctionDef) -> str:
    """The condition under which the converter raises before it returns anything, as far as it is one on its arguments
    alone (not on ranks and dtypes of tensors); empty where there is none."""
    return " or ".join(f"({ast.unparse(test)})" for test in _tests(function))


def _tests(function: ast.FunctionDef) -> Iterator[ast.expr]:
    arguments = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
    for statement in function.body:
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise):
            if _decidable(statement.test, arguments):
                yield statement.test
        elif any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            return
        arguments -= {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }


def _decidable(node: ast.expr, arguments: Collection[str]) -> bool:
    match node:
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_decidable(part, arguments) for part in parts)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
            return _decidable(part, arguments)
        case ast.Compare(left=left, comparators=others):
            return all(_decidable(part, arguments) for part in (left, *others))
        case ast.Attribute(value=ast.Name(id="torch")) | ast.Constant():
            return True
        case _:
            return isinstance(node, ast.Name) and node.id in arguments


def holds(condition: str, constants: Mapping[str, str]) -> bool:
    """Whether the condition holds of the call's constants, each as Python writes it (`torch.strided`, `'none'`), a
    tensor as GIVEN; one on what is no constant does not."""
    try:
        return bool(_value(ast.parse(condition, mode="eval").body, constants))
    except (KeyError, TypeError):  # no constant; constants that do not compare
        return False


def _value(node: ast.expr, constants: Mapping[str, str]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, constants) for part in parts)
        case ast.BoolOp(values=parts):
            return any(holds(ast.unparse(part), constants) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _value(part, constants)
        case ast.UnaryOp(operand=part):
            return -_value(part, constants)
        case ast.Compare(left=left, ops=signs, comparators=others):
            values = [_value(part, constants) for part in (left, *others)]
            if ... in values and not all(isinstance(sign, ast.Is | ast.IsNot) for sign in signs):
                raise KeyError(GIVEN)
            pairs = zip(signs, values, values[1:], strict=False)
            return all(_COMPARED[type(sign)](one, other) for sign, one, other in pairs)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, constants) for part in parts]
        case ast.Name(id=name):
            return _literal(constants[name])
        case ast.Constant(value=value):
            return value
        case _:
            return ast.unparse(node)


def _literal(text: str) -> Any:
    """`torch.strided` stands for itself, as an attribute of torch in a condition does."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text
