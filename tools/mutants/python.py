"""What a careless engineer does to Python: every such change to a file, by its syntax tree.

Not eligible, because nobody could notice or would: annotations, text, decorators, asserts and zip's `strict` (they are
for the reader and the type checker), what only a type checker runs, and the words of an error.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from itertools import accumulate

from attrs import define, evolve, field, frozen

from tools.mutants import expressions, statements
from tools.mutants.mutation import Mutation, numbered

DECORATED_AWAY = {"overload", "abstractmethod"}
"""What these decorate is never run, or only by way of another class."""


def mutations(path: str, source: str) -> list[Mutation]:
    """Every mutation of a Python file, in the order of the file; few of them do not compile."""
    finder = _Finder.of(path, source)
    finder.block(ast.parse(source), _Around())
    return numbered(finder.found)


def compiles(source: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


@frozen
class _Around:
    """Where in the file the walk is."""

    scope: tuple[str, ...] = ()
    in_function: bool = False
    first: int = 1
    last: int = 1


@define(kw_only=True)
class _Finder:
    path: str
    source: str
    raw: bytes
    lines: list[str]
    starts: list[int]
    found: list[Mutation] = field(factory=list)

    @classmethod
    def of(cls, path: str, source: str) -> _Finder:
        raw = source.encode()
        starts = [0, *accumulate(len(line) for line in raw.splitlines(keepends=True))]
        return cls(path=path, source=source, raw=raw, lines=source.split("\n"), starts=starts)

    def block(self, node: ast.AST, around: _Around) -> None:
        """Every statement below `node`, each with the lines that are its own."""
        for statement in _statements(node):
            if _never_run(statement):
                continue
            header = _header(statement)
            here = evolve(around, first=statement.lineno, last=header)
            self._note(statements.changes(statement, self._text, (around.scope or ("",))[-1]), here)
            self._expressions(statement, here)
            inner = here
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = evolve(here, scope=(*around.scope, statement.name), in_function=True)
            elif isinstance(statement, ast.ClassDef):
                inner = evolve(here, scope=(*around.scope, statement.name))
            self.block(statement, inner)

    def _expressions(self, statement: ast.stmt, around: _Around) -> None:
        for part in _own_expressions(statement):
            self._walk(part, around)

    def _walk(self, node: ast.expr, around: _Around) -> None:
        if isinstance(node, ast.JoinedStr):  # before Python 3.12 what is inside has no place
            return
        self._note(expressions.changes(node, at_import=not around.in_function), around)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._walk(child, around)
            elif isinstance(child, ast.keyword | ast.comprehension):
                if expressions.is_assertion(node, child):
                    continue
                for part in ast.iter_child_nodes(child):
                    if isinstance(part, ast.expr):
                        self._walk(part, around)
            elif isinstance(child, ast.arguments):
                for default in (*child.defaults, *filter(None, child.kw_defaults)):
                    self._walk(default, around)

    def _note(self, changes: Iterator[expressions.Change], around: _Around) -> None:
        for change in changes:
            start = self._offset(change.line, change.column)
            end = self._offset(change.end_line, change.end_column)
            old = self.raw[start:end].decode()
            new = _on_as_many_lines(change.new, old.count("\n") - change.new.count("\n"))
            self.found.append(
                Mutation(
                    path=self.path,
                    scope=".".join(around.scope),
                    line=change.line,
                    first=around.first,
                    last=around.last,
                    start=start,
                    end=end,
                    old=old,
                    new=new,
                    kind=change.kind,
                    text=self.lines[change.line - 1].strip(),
                    at_import=not around.in_function,
                )
            )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._offset(node.end_lineno, node.end_col_offset)
        return self.raw[self._offset(node.lineno, node.col_offset) : end].decode()

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column


def _on_as_many_lines(new: str, lost: int) -> str:
    """Lines below keep their numbers: inside parentheses, and after a statement, a line may end anywhere."""
    if lost <= 0:
        return new
    if new == "pass":
        return new + "\n" * lost
    return f"{new[:-1]}{chr(10) * lost})" if new.endswith(")") else f"({new}{chr(10) * lost})"


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of the blocks of `node`, not those inside them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def _header(statement: ast.stmt) -> int:
    """The last line of a statement that is not its block's."""
    blocks = list(_statements(statement))
    if not blocks:
        return statement.end_lineno or statement.lineno
    decorated = [d.lineno for block in blocks for d in getattr(block, "decorator_list", ())]
    return max(statement.lineno, min([block.lineno for block in blocks] + decorated) - 1)


def _never_run(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
        return True
    if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
        return True
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
        return True
    if isinstance(statement, ast.ClassDef):
        return any(ast.unparse(base).partition("[")[0].endswith("Protocol") for base in statement.bases)
    names = {ast.unparse(d).rpartition(".")[2] for d in getattr(statement, "decorator_list", ())}
    return bool(names & DECORATED_AWAY)


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself: no annotation, no decorator, no target, no words of an error."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from statement.args.defaults
            yield from filter(None, statement.args.kw_defaults)
        case ast.ClassDef() | ast.Raise() | ast.Delete():
            return
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Expr():
            if statement.value is not None:
                yield statement.value
        case ast.For() | ast.AsyncFor():
            yield statement.iter
        case ast.If() | ast.While():
            yield statement.test
        case ast.With() | ast.AsyncWith():
            yield from (item.context_expr for item in statement.items)
        case ast.Match():
            yield statement.subject
            yield from (case.guard for case in statement.cases if case.guard is not None)
        case _:
            return
