"""What a script does when it is run with classes that record every option: the compilations, for all answers to its
conditions.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType, SimpleNamespace
from typing import Any

from attrs import frozen

ASKED = ("c0", "args.c1", 'os.environ.get("C2") == "1"', "probe(3)")
"""How a script may ask a condition; a run answers each."""
STEPS = 3_000


class Recorded:
    """A CompilerConfig, or a part of one, that remembers what was set on it."""

    def __init__(self, values: dict[str, Any] | None = None, path: str = "") -> None:
        object.__setattr__(self, "_values", {} if values is None else values)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}{name}"
        return self._values[path] if path in self._values else Recorded(self._values, f"{path}.")

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[self._path.removesuffix(".") if name == "value" else f"{self._path}{name}"] = value


@frozen(kw_only=True)
class Compiled:
    """One call of torch.compile in one run: what held then, and what held when the script had ended."""

    line: int
    package: str
    keywords: Mapping[str, Any]
    then: Mapping[str, Any]
    later: dict[str, Any]


def runs(text: str) -> list[list[Compiled]]:
    """What is compiled, for all answers to the conditions."""
    code = compile(text, "generated", "exec")
    return [_run(code, text, answers) for answers in itertools.product((False, True), repeat=len(ASKED))]


def _run(code: Any, text: str, answers: tuple[bool, ...]) -> list[Compiled]:
    found: list[Compiled] = []

    def compiling(*_: Any, backend: Any = None, options: Any = None, **keywords: Any) -> Any:
        values = ({} if options is None else options) if backend == "npugraph_ex" else backend._values
        at = sys._getframe(1).f_lineno
        package = "npugraph_ex" if backend == "npugraph_ex" else "torchair"
        found.append(Compiled(line=at, package=package, keywords=keywords, then=dict(values), later=values))
        return lambda *_: None

    def tweak(given: Any) -> None:
        if isinstance(given, Recorded):
            given.mode, given.debug.run_eagerly = "max-autotune", True
        elif isinstance(given, dict):
            given["clone_output"] = not given.get("clone_output", False)
        elif isinstance(given, list):
            given.append(99)
        elif callable(given):
            given()

    def risky() -> None:
        if answers[0]:
            raise ValueError

    torchair = SimpleNamespace(CompilerConfig=Recorded, get_npu_backend=lambda compiler_config: compiler_config)
    os = SimpleNamespace(environ={"C2": "1" if answers[2] else "0"})
    names: dict[str, Any] = {
        "__name__": "__main__",
        "c0": answers[0],
        "args": SimpleNamespace(c1=answers[1]),
        "probe": lambda _: answers[3],
        "tweak": tweak,
        "risky": risky,
        "m": object(),
        "count": 2 * answers[0] + answers[1],
    }
    modules = {"torch": SimpleNamespace(compile=compiling), "torchair": torchair, "os": os}
    grows = "append" in text or "insert" in text or "+= [" in text  # a loop over a list that grows need not end
    with (
        replaced(modules),
        limited() if grows else nullcontext(),
        suppress(Exception, SystemExit),
    ):  # what ends early has compiled what it has
        exec(code, names)
    return found


@contextmanager
def replaced(modules: Mapping[str, Any]) -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in modules}
    for name, found in modules.items():
        stand_in = ModuleType(name)
        stand_in.__dict__.update(vars(found))
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name, found in before.items():
            if found is None:
                del sys.modules[name]
            else:
                sys.modules[name] = found


@contextmanager
def limited() -> Iterator[None]:
    """A script that does not end is ended."""
    left = STEPS

    def trace(*_: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TimeoutError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
