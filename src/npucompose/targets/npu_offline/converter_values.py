"""Expressions of a converter's source over its arguments: put together, taken apart, and worked out where constants
decide. A part that is no matter of the arguments is open (`...`)."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from npucompose.vendor.converter_conditions import DTYPE, TENSOR, TENSORS, TORCHS_TENSOR, compared

OPEN_PART = ast.Constant(...)
MADE = ast.Call(ast.Name(TENSOR), [], [])
"""A tensor that a converter makes with one of GE's functions."""
_OPPOSITES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    one: other
    for pair in ((ast.Is, ast.IsNot), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn))
    for one, other in (pair, pair[::-1])
}
MOST_ROUNDS = 64
"""Rounds of a loop that are written out."""

LONGEST = 600
"""Characters of an expression that is kept; a longer one is left open."""
FEW = 24
"""Parts of an expression that is certainly not so long."""

Values = dict[str, ast.expr]


def is_open(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def short(node: ast.expr) -> ast.expr:
    """The expression, whose longest parts are open where it is longer than what is kept."""
    if isinstance(node, ast.List):
        return ast.List([short(one) for one in node.elts])
    few = not any(True for _ in islice(ast.walk(node), FEW, None))
    if few or len(ast.unparse(node)) <= LONGEST:
        return node
    match node:
        case ast.BoolOp(op=sign, values=parts):
            longest = max(parts, key=_length)
            return short(joint(sign, [OPEN_PART if part is longest else part for part in parts]))
        case ast.IfExp(test=test, body=body, orelse=orelse) if _length(test) < _length(body) >= _length(orelse):
            return short(either(test, OPEN_PART, orelse))
        case ast.IfExp(test=test, body=body, orelse=orelse) if _length(test) < _length(orelse):
            return short(either(test, body, OPEN_PART))
        case _:
            return OPEN_PART


def _length(node: ast.expr) -> int:
    return len(ast.unparse(node))


def closed(node: ast.expr, *parts: str) -> ast.expr:
    """The node, or open where one of these parts is."""
    found = [getattr(node, part) for part in parts]
    listed = (one for part in found for one in (part if isinstance(part, list) else [part]))
    return OPEN_PART if any(map(is_open, listed)) else node


def negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Constant) and not is_open(test):
        return ast.Constant(not test.value)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _OPPOSITES:
        return ast.Compare(test.left, [_OPPOSITES[type(test.ops[0])]()], test.comparators)
    return closed(ast.UnaryOp(ast.Not(), test), "operand")


def either(test: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    """`yes if test else no`, as short as it can be said."""
    if isinstance(test, ast.Constant) and not is_open(test):
        return yes if test.value else no
    if yes is no or ast.dump(yes) == ast.dump(no):
        return yes
    if isinstance(yes, ast.List) and isinstance(no, ast.List) and len(yes.elts) == len(no.elts):
        return ast.List([either(test, one, other) for one, other in zip(yes.elts, no.elts, strict=True)])
    if is_open(test) or (is_open(yes) and is_open(no)):
        return OPEN_PART
    if _is_bool(test) and _is_bool(yes) and _is_bool(no):
        return _of_bools(test, yes, no)
    return ast.IfExp(test, yes, no)


def _of_bools(test: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    match yes, no:
        case ast.Constant(value=True), _:
            return joint(ast.Or(), [test, no])
        case ast.Constant(value=False), _:
            return joint(ast.And(), [negated(test), no])
        case _, ast.Constant(value=True):
            return joint(ast.Or(), [negated(test), yes])
        case _, ast.Constant(value=False):
            return joint(ast.And(), [test, yes])
        case _:
            return ast.IfExp(test, yes, no)


def _is_bool(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool()) | ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp(values=parts):
            return all(map(_is_bool, parts))
        case ast.Call(func=ast.Name(id=name)):
            return name in ("any", "all", "isinstance", "is_arch35", "bool")
        case _:
            return False


def joint(sign: ast.boolop, parts: Sequence[ast.expr]) -> ast.expr:
    """`and` and `or` without the parts that change nothing, up to the one that decides."""
    ends, kept = isinstance(sign, ast.Or), list[ast.expr]()
    inside = (part.values if isinstance(part, ast.BoolOp) and type(part.op) is type(sign) else [part] for part in parts)
    parts = [part for some in inside for part in some]
    for part in parts:
        if isinstance(part, ast.Constant) and not is_open(part):
            if bool(part.value) != ends and part is not parts[-1]:
                continue
            kept.append(part)
            if bool(part.value) == ends:
                break
        else:
            kept.append(part)
    if all(map(is_open, kept)):
        return OPEN_PART
    last = kept[-1]
    if isinstance(last, ast.Constant) and last.value is (not ends) and kept[:-1] and all(map(_is_bool, kept)):
        kept.pop()
    return kept[0] if len(kept) == 1 else ast.BoolOp(sign, kept)


def all_of(way: Sequence[ast.expr]) -> ast.expr:
    """True where every condition of the way holds."""
    return joint(ast.And(), way) if way else ast.Constant(True)


def leaves(node: ast.expr, change: Callable[[ast.expr], ast.expr]) -> ast.expr:
    """The expression whose every outcome is changed: `f(a) if test else f(b)`."""
    if isinstance(node, ast.IfExp):
        return either(node.test, leaves(node.body, change), leaves(node.orelse, change))
    return change(node)


def of_a_tensor(value: ast.expr, attribute: str, made: Mapping[str, ast.expr]) -> ast.expr:
    def of(one: ast.expr) -> ast.expr:
        if one is MADE:
            return made.get(attribute, OPEN_PART)
        return closed(ast.Attribute(one, attribute), "value")

    return _told(value, of)


def _told(value: ast.expr, of: Callable[[ast.expr], ast.expr]) -> ast.expr:
    """What `of` says of the value; of each of its outcomes where one is a tensor that was made."""
    return leaves(value, of) if any(part is MADE for part in ast.walk(value)) else of(value)


def is_of(value: ast.expr, types: ast.expr) -> ast.expr:
    """`isinstance(value, types)`, which is known of a tensor that was made."""
    names = [ast.unparse(one) for one in (types.elts if isinstance(types, ast.Tuple) else [types])]

    def of(one: ast.expr) -> ast.expr:
        if one is MADE:
            return ast.Constant(any(name in TENSORS for name in names))
        if names == [TORCHS_TENSOR] or (names == [DTYPE] and _is_of_ge(one)):
            return ast.Constant(value=False)
        return closed(ast.Call(ast.Name("isinstance"), [one, types], []), "args")

    return _told(value, of)


def _is_of_ge(node: ast.expr) -> bool:
    """One of GE's types: of a tensor, or by its name."""
    return isinstance(node, ast.Attribute) and (node.attr == "dtype" or ast.unparse(node.value) == "DataType")


def comparison(left: ast.expr, signs: list[ast.cmpop], others: list[ast.expr]) -> ast.expr:
    """The comparison of each outcome, decided where both sides are constants, or one is a tensor that was made and the
    other None."""
    if len(signs) == 1:
        (sign,), (other,) = signs, others
        return leaves(left, lambda one: _compared(one, sign, other))
    return closed(ast.Compare(left, signs, others), "left", "comparators")


def _compared(left: ast.expr, sign: ast.cmpop, other: ast.expr) -> ast.expr:
    if left is MADE and isinstance(other, ast.Constant) and other.value is None:
        return ast.Constant(isinstance(sign, ast.IsNot | ast.NotEq))
    known = [_constant(one) for one in (left, other)]
    if None not in known:
        try:
            return ast.Constant(compared(sign, *(value for one in known if one for value in one)))
        except TypeError:
            pass
    return closed(ast.Compare(left, [sign], [other]), "left", "comparators")


def _constant(node: ast.expr) -> tuple[Any] | None:
    """(value,) of a constant; None of anything else. A name of GE's stands for itself."""
    match node:
        case ast.Constant(value=value) if value is not ...:
            return (value,)
        case ast.Attribute(value=ast.Name(id="DataType"), attr=name):
            return (f"DataType.{name}",)
        case ast.List(elts=parts):
            known = [_constant(part) for part in parts]
            return None if None in known else ([value for one in known if one for value in one],)
        case _:
            return None


def part_of(of: ast.expr, at: ast.expr) -> ast.expr:
    match of, at:
        case _ if of is MADE:
            return MADE  # one of several results
        case ast.List(elts=parts), ast.Constant(value=int() as place):
            return parts[place] if -len(parts) <= place < len(parts) else OPEN_PART
        case ast.List(elts=parts), ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as place)):
            return parts[-place] if 0 < place <= len(parts) else OPEN_PART
        case ast.Dict(keys=keys, values=values), ast.Constant(value=str() as name):
            found = [one for key, one in zip(keys, values, strict=True) if getattr(key, "value", None) == name]
            return found[0] if found else OPEN_PART
        case _:
            return closed(ast.Subscript(of, at), "value", "slice")


def written_out(name: str, args: Sequence[ast.expr]) -> ast.expr | None:
    """What `len`, `range`, `zip`, `enumerate`, `list` and `tuple` give of lists that are written out."""
    lists = [one for one in args if isinstance(one, ast.List)]
    numbers = [one.value for one in args if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    if args and len(lists) == len(args):
        if name == "len" and len(args) == 1:
            return ast.Constant(len(lists[0].elts))
        if name in ("list", "tuple") and len(args) == 1:
            return lists[0]
        if name == "zip":
            return ast.List([ast.List(list(row)) for row in zip(*(one.elts for one in lists), strict=False)])
        if name == "enumerate" and len(args) == 1:
            return ast.List([ast.List([ast.Constant(at), one]) for at, one in enumerate(lists[0].elts)])
    if name == "range" and args and len(numbers) == len(args) and len(range(*numbers)) <= MOST_ROUNDS:
        return ast.List([ast.Constant(one) for one in range(*numbers)])
    return None


def of_a_dict(given: ast.expr, method: str, args: Sequence[ast.expr]) -> ast.expr:
    """`D.items()`, `D.keys()`, `D.values()`, `D.get(key)` of a dictionary that is written out."""
    if not isinstance(given, ast.Dict):
        return OPEN_PART
    keys = [one for one in given.keys if one is not None]
    match method, list(args):
        case "keys", []:
            return ast.List(list(keys))
        case "values", []:
            return ast.List(list(given.values))
        case "items", []:
            return ast.List([ast.List([key, one]) for key, one in zip(keys, given.values, strict=True)])
        case "get", [ast.Constant(value=str() as name)]:
            known = {getattr(key, "value", None): one for key, one in zip(keys, given.values, strict=True)}
            return known.get(name, ast.Constant(None)) if len(known) == len(keys) else OPEN_PART
        case "get", [key]:
            return closed(ast.Call(ast.Attribute(given, "get"), [key], []), "args")
        case _:
            return OPEN_PART


# Variables


def bind(target: ast.expr, value: ast.expr, values: Values) -> None:
    if isinstance(target, ast.Name):
        values[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        fits = isinstance(value, ast.List) and len(value.elts) == len(target.elts)
        made = [MADE if value is MADE else OPEN_PART] * len(target.elts)
        parts = value.elts if fits and isinstance(value, ast.List) else made
        for one, part in zip(target.elts, parts, strict=True):
            bind(one, part, values)
    elif isinstance(target, ast.Subscript):
        _put(target, value, values)
    elif not ast.unparse(target).partition(".")[2].startswith("desc."):  # what GE is told, which no property reads
        forget(base(target), values)


def _put(target: ast.Subscript, value: ast.expr, values: Values) -> None:
    """Of `many[1] = value`."""
    listed = values.get(target.value.id) if isinstance(target.value, ast.Name) else None
    match listed, target.slice:
        case ast.List(elts=parts), ast.Constant(value=int() as at) if -len(parts) <= at < len(parts):
            changed = list(parts)
            changed[at] = value
            values[base(target)] = ast.List(changed)
        case _:
            forget(base(target), values)


def forget(name: str, values: Values) -> None:
    if name in values:
        values[name] = OPEN_PART


def forget_all(statement: ast.stmt, values: Values) -> None:
    """Whatever the statement may set or change."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            values[base(node)] = OPEN_PART
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            forget(base(node.value.func), values)


def base(node: ast.expr) -> str:
    """`y` of `y.desc.dtype` and of `y[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def renamed(target: ast.expr, taken: Collection[str]) -> Any:
    """A loop's variables under names that stand for nothing else."""
    if isinstance(target, ast.Tuple | ast.List):
        return ast.Tuple([renamed(one, taken) for one in target.elts])
    name = ast.unparse(target)
    while name in taken:
        name += "_"
    return ast.Name(name)


def themselves(target: ast.expr, to: ast.expr) -> Values:
    """{variable of a loop: what it stands for inside}."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(to, ast.Tuple):
        pairs = (themselves(one, other) for one, other in zip(target.elts, to.elts, strict=True))
        return {name: value for one in pairs for name, value in one.items()}
    return {ast.unparse(target): to}


def filled(statement: ast.For, before: Mapping[str, ast.expr]) -> frozenset[str]:
    """The variables of which a loop does nothing but append to a list, or add or multiply to a number, in one place."""
    puts, stores = Counter[str](), Counter[str]()
    for node in ast.walk(statement):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add() | ast.Mult()):
                number = before.get(name)
                puts[name] += isinstance(number, ast.Constant) and isinstance(number.value, int | float)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")):
                puts[name] += name in before and not is_open(before[name])
                stores[name] += 1
            case ast.Name(id=name, ctx=ast.Store()):
                stores[name] += 1
            case ast.Expr(value=ast.Call(func=called)) if not ast.unparse(called).endswith(".append"):
                stores[base(called)] += 1
            case _:
                pass
    return frozenset(name for name, count in puts.items() if count == 1 == stores[name])


def without_continue(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The same statements where `if …: continue` has the rest as its other branch."""
    made: list[ast.stmt] = []
    for at, one in enumerate(statements):
        if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Continue) and not one.orelse:
            rest = without_continue(statements[at + 1 :])
            return [*made, ast.If(one.test, one.body[:-1] or [ast.Pass()], rest)]
        made.append(one)
    return made


def root(node: ast.expr) -> str:
    return ast.unparse(node).partition(".")[0]
