"""Where a GE converter raises: the conditions of its source on its arguments alone, found without running anything.

`if x.rank != 4: raise …` gives `x.rank != 4`. A variable stands for what it was assigned, functions of the wheel's own
files are looked into, a loop over an argument becomes `any` of its rounds, and a part that is no matter of the
arguments is left open (`...`). A way that returns nothing, and a call of one of GE's functions with an argument that it
lacks, raise as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from npucompose.targets.npu_offline.converter_expressions import Expressions, SourceFile, Way
from npucompose.targets.npu_offline.converter_values import (
    LONGEST,
    OPEN_PART,
    Values,
    all_of,
    base,
    bind,
    either,
    filled,
    forget,
    forget_all,
    is_open,
    joint,
    negated,
    renamed,
    root,
    short,
    themselves,
    without_continue,
)
from npucompose.vendor.converter_conditions import META_OUTPUTS, OPEN, RESULTS, guards, joined

DEEPEST = 6
"""Functions that call each other."""
_MARKS = frozenset({"register_fx_node_ge_converter", "register_checkpoint_func", "declare_supported"})
"""Decorators that leave a function as it is."""


def refusing(function: ast.FunctionDef, file: SourceFile) -> str:
    """The conditions of which any makes the converter raise, in one text that begins with its arguments, which a call
    gives by their places (`lambda x, y: (x.rank != 4) or (y is None)`); empty where there is none."""
    walk = _Walk(file)
    values: Values = {one.arg: ast.Name(one.arg) for one in (*function.args.args, *function.args.kwonlyargs)}
    walk.taken.update(values)
    end = walk.body(function.body, values, ())
    if end is not None:
        walk.returned(ast.Constant(None), end)
    found = joined(walk.conditions())
    names = ", ".join(one.arg for one in function.args.args if one.arg != META_OUTPUTS)
    return f"lambda {names}: {found}" if found else ""


def always(conditions: str) -> str:
    """What is wrong with a converter that raises in every call, in one sentence; empty where it does not."""
    values = [
        ast.literal_eval(one)
        for one in guards(conditions)
        if isinstance(ast.parse(one, mode="eval").body, ast.Constant)
    ]
    broken = next((one for one in values if isinstance(one, str)), None)
    return (
        f"its converter is broken: {broken}"
        if broken
        else "every way through its converter raises"
        if True in values
        else ""
    )


@frozen(kw_only=True)
class _Round:
    """What one round of a loop over an argument adds: ways that raise, ways that leave, what it puts into variables."""

    raising: list[Way]
    leaving: list[tuple[Way, ast.expr]]
    filled: Mapping[str, tuple[Way, ast.operator | None, ast.expr]]


class _Walk(Expressions):
    """One converter, statement by statement: `ways` are those on which it raises."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__(file)
        self.ways, self.deep = list[Way](), 0
        self.results: list[list[tuple[Way, ast.expr]]] = []
        self.filling: dict[str, tuple[Way, ast.operator | None, ast.expr] | None] = {}

    def conditions(self) -> Iterator[str]:
        found = [_shortened([ast.unparse(one) for one in way if not _is(one, value=True)]) for way in self.ways]
        decided = [set(parts) for parts in found if not any(OPEN in part for part in parts)]
        for parts in found:
            # Wherever it raises on the longer way, it does on the shorter one.
            if set(parts) != {OPEN} and not any(other < set(parts) for other in decided):
                yield " and ".join(f"({part})" if len(parts) > 1 and _loose(part) else part for part in parts) or "True"

    def raises(self, way: Way) -> None:
        if not any(_is(one, value=False) for one in way):
            self.ways.append(way)

    def returned(self, value: ast.expr, way: Way) -> None:
        """Of a converter: nothing, where the operator has results."""
        if isinstance(value, ast.Constant) and value.value is None:
            self.raises((*way, ast.Compare(ast.Name(RESULTS), [ast.NotEq()], [ast.Constant(0)])))

    def leaves(self, value: ast.expr, way: Way) -> None:
        self.results[-1].append((way, value)) if self.results else self.returned(value, way)

    # Statements

    def body(self, statements: Sequence[ast.stmt], values: Values, way: Way) -> Way | None:
        """The way behind the statements, which set `values`; None where no control comes to their end."""
        at: Way | None = way
        for statement in statements:
            at = self.statement(statement, values, at)
            if at is None:
                return None
        return at

    def statement(self, statement: ast.stmt, values: Values, way: Way) -> Way | None:
        match statement:
            case ast.Raise():
                self.raises(way)
                return None
            case ast.Assert(test=test):
                self.raises((*way, negated(self.expression(test, values, way))))
            case ast.Return(value=value):
                self.leaves(self.expression(value or ast.Constant(None), values, way), way)
                return None
            case ast.If():
                return self.choice(statement, values, way)
            case ast.For():
                return self.loop(statement, values, way)
            case ast.While() | ast.Try():
                return self.unread(statement, values, way)
            case ast.With(body=body):
                return self.body(body, values, way)
            case ast.Assign(targets=targets, value=value):
                given = self.expression(value, values, way)
                for target in targets:
                    bind(target, given, values)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                bind(target, self.expression(value, values, way), values)
            case ast.AugAssign(target=ast.Name(id=name), op=sign, value=value) if name in self.filling:
                self.filling[name] = (way, sign, self.expression(value, values, way))
            case ast.AugAssign(target=target, op=sign, value=value):
                read = ast.Name(target.id) if isinstance(target, ast.Name) else OPEN_PART
                bind(target, self.expression(ast.BinOp(read, sign, value), values, way), values)
            case ast.Expr(value=value):
                self.effect(value, values, way)
            case ast.FunctionDef(name=name):
                self.inner[name] = statement
            case _:
                pass
        return way

    def effect(self, value: ast.expr, values: Values, way: Way) -> None:
        """Of a call whose result is not kept: one of a method may change its object."""
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[one]):
                given, listed = self.expression(one, values, way), values.get(name)
                if name in self.filling:
                    self.filling[name] = (way, None, given)
                elif isinstance(listed, ast.List):
                    values[name] = ast.List([*listed.elts, given])
                else:
                    forget(name, values)
            case ast.Call(func=ast.Attribute(value=of)):
                self.expression(value, values, way)
                forget(base(of), values)
            case _:
                self.expression(value, values, way)

    def choice(self, statement: ast.If, values: Values, way: Way) -> Way | None:
        test = self.expression(statement.test, values, way)
        if isinstance(test, ast.Constant) and not is_open(test):
            return self.body(statement.body if test.value else statement.orelse, values, way)
        first, second = dict(values), dict(values)
        yes = self.body(statement.body, first, (*way, test))
        other = way if yes is None and not _returns(statement.body) else (*way, negated(test))
        no = self.body(statement.orelse, second, other)
        if yes is None or no is None:
            values.update(first if no is None else second)
            if no is None and yes is not None and not _returns(statement.orelse):
                return (*way, *yes[len(way) + 1 :])
            return no if yes is None else yes
        for name in {*first, *second}:
            pair = first.get(name, OPEN_PART), second.get(name, OPEN_PART)
            values[name] = pair[0] if pair[0] is pair[1] else short(either(test, *pair))
        more = all_of(yes[len(way) + 1 :]), all_of(no[len(other) :])
        return way if all(_is(one, value=True) for one in more) else (*way, either(test, *more))

    def unread(self, statement: ast.For | ast.While | ast.Try, values: Values, way: Way) -> Way:
        """What a loop does whose rounds are not known is open, and so is what a `try` does."""
        forget_all(statement, values)
        inside = statement.handlers[0].body if isinstance(statement, ast.Try) and statement.handlers else []
        self.body([*statement.body, *statement.orelse, *inside], dict(values), (*way, OPEN_PART))
        return (*way, OPEN_PART) if _returns([statement]) else way

    # Loops

    def loop(self, statement: ast.For, values: Values, way: Way) -> Way | None:
        """A loop over a list that is written out is its rounds; over an argument, one round that stands for all."""
        over = self.expression(statement.iter, values, way)
        body = without_continue(statement.body)
        jumps = any(isinstance(node, ast.Break | ast.Continue) for one in body for node in ast.walk(one))
        if jumps or statement.orelse or is_open(over):
            return self.unread(statement, values, way)
        if not isinstance(over, ast.List):
            return self.repeated(statement, body, over, values, way)
        at: Way | None = way
        for one in over.elts:
            bind(statement.target, one, values)
            at = None if at is None else self.body(body, values, at)
        return at

    def repeated(self, statement: ast.For, body: list[ast.stmt], over: ast.expr, values: Values, way: Way) -> Way:
        before = dict(values)
        forget_all(statement, values)
        target = renamed(statement.target, self.taken)
        inside = {**values, **themselves(statement.target, target)}
        found = self.one_round(body, inside, way, filled(statement, before), target)
        lists = {name: put for name, put in found.filled.items() if put[1] is None}
        named = Counter(node.id for one in body for node in ast.walk(one) if isinstance(node, ast.Name))
        if any(named[name] > 1 for name in lists):  # not only where it is appended to
            place = ast.Name(renamed(ast.Name("at"), self.taken).id)
            earlier = ast.Subscript(over, ast.Slice(None, place))
            for name, (when, _, one) in lists.items():
                inside[name] = short(_listed(before[name], one, target, earlier, when))
            target, over = ast.Tuple([place, target]), ast.Call(ast.Name("enumerate"), [over], [])
            found = self.one_round(body, inside, way, filled(statement, before), target)
        rounds = ast.comprehension(target, over, [], 0)
        for raising in found.raising:
            self.raises((*way, _any(raising, rounds)))
        for name, (when, sign, one) in found.filled.items():
            if sign is None:
                values[name] = short(_listed(before[name], one, target, over, when))
            elif not when:
                values[name] = short(_total(before[name], sign, one, rounds))
        if not found.leaving:
            return way
        anywhere = joint(ast.Or(), [_any(left, rounds) for left, _ in found.leaving])
        self.leaves(_the_same(found.leaving, target), (*way, anywhere))
        return (*way, negated(anywhere))

    def one_round(
        self, body: list[ast.stmt], values: Values, way: Way, fills: frozenset[str], target: ast.expr
    ) -> _Round:
        """One round, whose variables stand for themselves."""
        outer, names = (self.ways, self.results, self.filling), set(themselves(target, target))
        self.ways, self.results, self.filling = [], [[]], dict.fromkeys(fills)
        self.taken |= names
        self.body(body, dict(values), way)
        found = _Round(
            raising=[one[len(way) :] for one in self.ways],
            leaving=[(one[len(way) :], value) for one, value in self.results[0]],
            filled={name: (put[0][len(way) :], *put[1:]) for name, put in self.filling.items() if put is not None},
        )
        self.taken -= names
        self.ways, self.results, self.filling = outer
        return found

    def inside(
        self,
        function: ast.FunctionDef,
        file: SourceFile,
        args: list[ast.expr],
        keywords: Mapping[str, ast.expr],
        way: Way,
    ) -> ast.expr:
        """What a function of the wheel gives for these arguments; where it raises, the converter does."""
        given = function.args
        names = [one.arg for one in (*given.args, *given.kwonlyargs)]
        more = args[len(given.args) :]
        if self.deep == DEEPEST or given.kwarg or (more and not given.vararg) or not _plain(function):
            return OPEN_PART
        defaults = dict(zip([one.arg for one in given.args][::-1], given.defaults[::-1], strict=False))
        defaults |= {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        values: Values = (
            dict.fromkeys(names, OPEN_PART) | defaults | dict(zip(names, args, strict=False)) | {**keywords}
        )
        if given.vararg:
            values[given.vararg.arg] = ast.List(more)
        here, filling, self.file, self.filling = self.file, self.filling, file, {}
        self.deep += 1
        self.results.append([])
        end = self.body(function.body, values, way)
        self.deep -= 1
        self.file, self.filling = here, filling
        results = self.results.pop()
        made: ast.expr = ast.Constant(None) if end is not None else results.pop()[1] if results else OPEN_PART
        for at, value in reversed(results):
            made = either(all_of(at[len(way) :]), value, made)
        return made


def _listed(before: ast.expr, one: ast.expr, target: ast.expr, over: ast.expr, when: Way) -> ast.expr:
    """A list behind a loop that puts `one` into it, in the rounds of which `when` holds."""
    conditions = [all_of(when)] if when else []
    made = ast.ListComp(one, [ast.comprehension(target, over, conditions, 0)])
    return made if isinstance(before, ast.List) and not before.elts else ast.BinOp(before, ast.Add(), made)


def _total(before: ast.expr, sign: ast.operator, one: ast.expr, rounds: ast.comprehension) -> ast.expr:
    if is_open(one):
        return OPEN_PART
    added = isinstance(sign, ast.Add)
    function = ast.Name("sum") if added else ast.Attribute(ast.Name("math"), "prod")
    made = ast.Call(function, [ast.ListComp(one, [rounds])], [])
    return made if getattr(before, "value", None) == (0 if added else 1) else ast.BinOp(before, sign, made)


def _any(way: Way, rounds: ast.comprehension) -> ast.expr:
    """That the way is gone in some round."""
    test = all_of(way)
    return OPEN_PART if is_open(test) else ast.Call(ast.Name("any"), [ast.ListComp(test, [rounds])], [])


def _the_same(leaving: Sequence[tuple[Way, ast.expr]], target: ast.expr) -> ast.expr:
    """What a loop returns from whichever round; open where that depends on the round."""
    values, names = {ast.dump(one): one for _, one in leaving}, set(themselves(target, target))
    (first, *others) = values.values()
    of_round = any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(first))
    return OPEN_PART if others or of_round else first


def _plain(function: ast.FunctionDef) -> bool:
    return all(root(one.func if isinstance(one, ast.Call) else one) in _MARKS for one in function.decorator_list)


def _returns(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for one in statements for node in ast.walk(one))


def _is(node: ast.expr, *, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _shortened(parts: list[str]) -> list[str]:
    """Each part once, the longest ones open where all of them are more than what is kept."""
    while len(" and ".join(parts)) >= 2 * LONGEST:
        longest = max(parts, key=len)
        parts = [OPEN if part == longest else part for part in parts]
    return list(dict.fromkeys(parts))


def _loose(part: str) -> bool:
    return isinstance(ast.parse(part, mode="eval").body, ast.BoolOp | ast.IfExp)
