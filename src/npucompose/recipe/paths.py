"""Which paths a script may take, and what holds on all of them: the one rule of what is certain.

Every assignment goes through `put`. Branches are read one after the other, each from the state before them; what they
leave is joined, cell by cell, and where they leave several values none is certain (`merge`). A path that ends (return,
raise, break) is not joined with what follows. A body that may run several times is read until nothing new is assigned
in it; what an except clause sees is any of the states before it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from attrs import define, evolve, field

from npucompose.recipe.compilations import Facts, TooLong
from npucompose.recipe.values import (
    MISSING,
    MOST_ITEMS,
    REST,
    At,
    Cells,
    CompileCall,
    Config,
    Const,
    Def,
    Filter,
    Items,
    Object,
    Partial,
    Scope,
    Unknown,
    Value,
    competitor,
    inside,
    known,
    merge,
    same,
)
from npucompose.recipe.vendor_options import HOOKS, Unread, attributes, group_of, set_option

EXCEPT = "it is in an except clause"
NEVER = "no line of the script calls it"
"""Why a body may not be run; what it calls counts all the same."""
LATER = "it may be set after the model is compiled"
MOST_PASSES = 6
"""Of one loop's body; then all that it assigns is unknown."""
Left: TypeAlias = "dict[tuple[int, str], tuple[Cells, str, Value]]"
"""What a path has assigned: {(cells, key): cells, key, value}."""
Way: TypeAlias = Callable[[], Any]


@define(eq=False)
class Paths:
    """The state at one place of a script: what was assigned on the way there, and why it may not be reached."""

    torch_npu: str
    steps_left: int
    facts: Facts = field(factory=Facts)
    doubts: list[str] = field(factory=list)
    """Why this place may not be reached, the nearest last."""
    dead: bool = False
    """This path has ended."""
    leaves: int = 0
    """How many returns, breaks and continues were read."""
    now: int = 0
    trail: list[tuple[Cells, str, Value]] = field(factory=list)
    """(cells, key, what it was) of each assignment that holds here."""
    log: list[tuple[Cells, str, Value, Value]] = field(factory=list)
    """(cells, key, what it was, what it became) of each assignment that was read."""
    watched: dict[int, list[tuple[Cells, str]]] = field(factory=dict)
    """{id of the cells of a dict: (cells of a compilation with it, what its keys begin with there)}. What is put into a
    dict of options after a compilation with them may count for it."""
    repeated: int = 0
    """How many bodies around this place may run several times."""
    sites: dict[Any, Any] = field(factory=dict)
    calls: tuple[Any, ...] = ()
    """The calls of functions that lead here, rounds of constant loops, and which of several values is taken."""
    exits: list[tuple[Left, Value, str]] = field(factory=list)
    """(what was assigned, what is returned, why it may not be) of each return of the function that is read."""
    defs: list[Def | Partial] = field(factory=list)
    seen: set[ast.AST] = field(factory=set)
    """The functions whose body was read."""

    @property
    def doubt(self) -> str:
        """Why this place may not be reached; empty where it certainly is."""
        return self.doubts[-1] if self.doubts else ""

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise TooLong

    def code(self, node: ast.AST) -> str:
        """The text of a part of the script. It takes the longer the longer it is."""
        text = ast.unparse(node)
        self.step(1 + len(text) // 20)
        return text

    def short(self, node: ast.AST) -> str:
        code = " ".join(self.code(node).split())
        return code if len(code) <= 100 else code[:97] + "..."

    def unread(self, s: ast.AST, why: str) -> None:
        self.facts.unread.append(Unread(line=getattr(s, "lineno", 0), code=self.short(s), why=why))

    # Assignments.

    def made(self, site: ast.AST, kind: Any, **fields: Any) -> Any:
        """A new object with cells of its own; one that a repeated body makes is the same in each reading of it."""
        at = (site, kind, self.calls)
        found = self.sites.get(at) if self.repeated else None
        if found is None:
            found = self.sites[at] = kind(cells=Cells(self.now), **fields)
        elif kind is CompileCall:
            found = evolve(found, **fields)
        self.watched.pop(id(found.cells), None)
        for key in list(found.cells):
            self.put(found.cells, key, MISSING)
        return found

    def put(self, cells: Cells, key: str, value: Value) -> None:
        before = cells.get(key, MISSING)
        self.trail.append((cells, key, before))
        self.log.append((cells, key, before, value))
        if value is not MISSING:
            cells[key] = value
        else:
            cells.pop(key, None)
        for compiled, prefix in () if same(before, value) else self.watched.get(id(cells), ()):
            kept, why = known(value)
            plainly = value if why else Const(value=kept, node=getattr(value, "node", None))
            self._later(compiled, prefix + key if prefix else REST, plainly)

    def _later(self, compiled: Cells, path: str, value: Value) -> None:
        """The model is compiled when it is called first."""
        self.step()
        if path.endswith(REST):
            self.spoil(compiled, LATER)
        else:
            self.put(compiled, path, merge([compiled.get(path, MISSING), value], LATER))

    def left(self, mark: int) -> Left:
        self.step((len(self.trail) - mark) // 10)
        return {(id(cells), key): (cells, key, cells.get(key, MISSING)) for cells, key, _ in self.trail[mark:]}

    def undo(self, mark: int, born: int) -> None:
        """Back to the state at `mark`; what was made since then stays as it is, for nothing before it knows of it."""
        while len(self.trail) > mark:
            cells, key, before = self.trail.pop()
            if cells.born < born and before is not MISSING:
                cells[key] = before
            elif cells.born < born:
                cells.pop(key, None)

    def join(self, ends: Sequence[Left], born: int, why: str) -> None:
        for at, (cells, key, _) in {at: cell for end in ends for at, cell in end.items()}.items():
            there = [end[at][2] for end in ends if at in end]
            if len(there) < len(ends) and cells.born < born:
                there.append(cells.get(key, MISSING))
            self.put(cells, key, merge(there, why, cells.bound))

    # Paths.

    def split(self, why: str, *ways: Way, certain: Way | None = None) -> None:
        """One of several ways is taken; a `certain` one at least begins."""
        mark, count, before = len(self.trail), len(self.doubts), self.leaves
        self.now = born = self.now + 1
        ends: list[Left] = []
        for way in ways:
            self.doubts += [] if way is certain or why == NEVER else [why]
            way()
            del self.doubts[count:]
            ends += [] if self.dead else [self.left(mark)]
            self.undo(mark, born)
            self.dead = False
        self.join(ends, born, why)
        self.dead = not ends
        self.doubts += [why] if self.leaves != before else []

    def each(self, value: Value, act: Callable[[Any], Any]) -> Any:
        """What `act` gives of a value of which several are possible."""
        if not isinstance(value, Unknown) or not value.either:
            return act(value)
        found: list[Value] = []
        usable: list[Value] = [v for v in value.either if v is not MISSING and not same(v, Const(value=None))]
        usable += [] if value.closed and usable else [evolve(value, either=(), closed=False)]

        def take(number: int) -> None:
            calls, self.calls = self.calls, (*self.calls, f"value {number}")
            found.append(act(usable[number]))
            self.calls = calls

        if len(usable) == 1:
            take(0)
        else:
            self.split(str(value), *[partial(take, number) for number in range(len(usable))])
        return merge(found, value.why)

    def choice(self, value: Value, act: Callable[[Any], Any]) -> Any:
        """`each` where a value is one of several for certain: what else it may be is not taken for it."""
        opaque = isinstance(value, Unknown) and not value.closed
        return act(evolve(value, either=())) if opaque else self.each(value, act)

    def repeat(self, why: str, body: Way) -> None:
        """A body that runs any number of times: read until nothing is assigned that was not known before."""
        count, leaves, returns = len(self.doubts), self.leaves, len(self.exits)
        self.now = born = self.now + 1
        self.repeated += 1
        facts = Facts()
        for passed in range(MOST_PASSES + 1):
            facts, self.facts = self.facts, Facts()
            mark, start, found, seen = len(self.trail), len(self.log), len(self.defs), set(self.seen)
            self.doubts += [] if why == NEVER else [why]
            body()
            del self.doubts[count:]
            self.dead = False
            writes = self.log[start:]
            self.undo(mark, born)
            facts, self.facts = self.facts, facts
            if not self.widen(writes, born, why, last=passed == MOST_PASSES - 1) or passed == MOST_PASSES:
                break
            del self.exits[returns:], self.defs[found:]
            self.seen = seen
        self.facts.add(facts)
        self.repeated -= 1
        self.doubts += [why] if len(self.exits) > returns else []
        self.leaves = self.leaves if len(self.exits) > returns else leaves

    def widen(self, writes: Sequence[tuple[Cells, str, Value, Value]], born: int, why: str, last: bool = False) -> bool:
        """Each cell may hold what it holds, or anything that was written; whether that is new."""
        written: dict[tuple[int, str], tuple[Cells, str, list[Value]]] = {}
        for cells, key, before, value in writes:
            if cells.born < born:
                written.setdefault((id(cells), key), (cells, key, []))[2].extend((before, value))
        new = False
        for cells, key, values in written.values():
            before = cells.get(key, MISSING)
            after = merge([before, *values, *([Unknown(why=why)] if last else [])], why, cells.bound)
            if not same(before, after):
                self.put(cells, key, after)
                new = True
        return new

    def attempt(self, body: Way, handlers: Sequence[Way], otherwise: Way) -> None:
        """A body that an exception may end anywhere, and what is read then."""
        start = len(self.log)
        writes: list[tuple[Cells, str, Value, Value]] = []

        def tried() -> None:
            body()
            writes.extend(self.log[start:])
            if not self.dead:
                otherwise()

        def caught(handler: Way) -> None:
            self.widen(writes, self.now + 1, EXCEPT)
            handler()

        self.split(EXCEPT, tried, *[partial(caught, handler) for handler in handlers], certain=tried)

    # What is known of objects.

    def spoil(self, cells: Cells, why: str, *, under: str = "", holds: Sequence[Value] = ()) -> None:
        """Any of the cells may have any value now."""
        for key, value in [*cells.items(), *([] if under else [(REST, cells.get(REST, MISSING))])]:
            for part in alternatives(value):
                if isinstance(part, CompileCall):
                    self.spoil(part.cells, why, under=under)
            if key.startswith(under) and not key.startswith("#"):
                more = holds if key == REST else ()
                self.put(cells, key, merge([value, Unknown(why=why, either=tuple(more))], why, bound=True))

    def escape(self, value: Value, why: str, seen: set[int] | None = None) -> None:
        """Code that is not in this script has the value, and may change all that can be changed through it."""
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        self.step()
        if isinstance(value, Config):
            self.spoil(value.cells, why)
        elif isinstance(value, At):
            self.spoil(value.config.cells, why, under=f"{value.path}.")
        elif isinstance(value, (Items, Object)):
            parts = list(value.cells.values())
            self.spoil(value.cells, why)
            for part in parts:
                self.escape(part, why, seen)
        elif isinstance(value, (Unknown, Partial)):
            for part in value.either if isinstance(value, Unknown) else (value.function, *value.args):
                self.escape(part, why, seen)

    def cloud(self, scope: Scope | None, why: str) -> None:
        """Any name may have been set, and what it stands for changed."""
        while scope is not None:
            self.step(len(scope.names))
            for name, value in list(scope.names.items()):
                if isinstance(value, (Config, At, Object)):
                    self.escape(value, why)
                if isinstance(value, (Const, Items)):
                    self.put(scope.names, name, Unknown(why=why, name=name, either=(value,)))
            scope = scope.parent

    def option(self, base: Config | At, name: str, value: Value, s: ast.AST) -> None:
        place = inside(base, name)
        config, path = place.config, place.path
        there = attributes(config.package, self.torch_npu)
        path = path if path in there else path.removesuffix(".value")  # an option is an object with a value
        if path in HOOKS:
            config.hooks[HOOKS[path]] = s
            return
        whole = name == REST or group_of(config.package, path, self.torch_npu)
        found, why = None, str(value) if name == REST else "a whole sub-configuration is replaced"
        if whole:
            self.spoil(config.cells, why, under="" if name == REST else f"{path}.")
        else:
            found, why = self._taken(config, path, value)
        if why:
            self.unread(s, why)
        if path in there:
            cell = Unknown(why=why) if why else Const(value=found, node=s)
            for part in [part for one in config.cells.values() for part in alternatives(one)]:
                if isinstance(part, CompileCall):
                    self._later(part.cells, there[path].path, cell)
            self.put(config.cells, there[path].path, cell)

    def _taken(self, config: Config, path: str, value: Value) -> tuple[Any, str]:
        """(the value as the option holds it, why it does not take it)"""
        leaf = attributes(config.package, self.torch_npu).get(path)
        room = [MOST_ITEMS]
        kept, why = known(value, room)
        if why:
            return None, why
        if leaf is not None and (leaf.kind == "names" and kept is not None) != isinstance(value, Filter):
            return None, "it takes a function of nodes" if leaf.kind == "names" else "it is a function"
        self.step(MOST_ITEMS - room[0])
        found: dict[str, Any] = {}
        why = set_option(config.package, found, path, kept, self.torch_npu) or ""
        return next(iter(found.values()), None), why

    def settle(self) -> None:
        """The assignments that compete, of every configuration, as lines that are not read."""
        entries = [entry for one in (*self.facts.configs, *self.facts.compiles) for entry in one.cells.items()]
        for path, cell, value in [(path, one, part) for path, one in entries for part in alternatives(one)]:
            if isinstance(cell, Unknown) and isinstance(value, Const) and value.node is not None:
                others = [competitor(other) for other in cell.either if other is not value]
                against = f"against {' or '.join(others)}" if others else "and another value may come after it"
                said = path.rpartition(".")[2] in self.short(value.node)
                self.unread(value.node, f"{'' if said else f'{path}: '}{cell.why}, {against}")


def alternatives(value: Value) -> Sequence[Value]:
    return value.either if isinstance(value, Unknown) else (value,)
