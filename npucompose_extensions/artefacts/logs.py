"""Logs, line by line: TorchAir's C++ and Python layers, GE's plog about its shape partition, torch's recompilations.

A log may hold all of them between other lines, with or without the prefix of a grep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import define, field

from npucompose.results.record import Recompile
from npucompose.schema.experiment import Shapes
from npucompose.sinking.recompiles import AdviceContext, Recompilation, explain_recompilation, guard_of
from npucompose_extensions.artefacts.artefact import Artefact, Compiled, Form, FxInput, Mark
from npucompose_extensions.artefacts.text import cut_off

_PREFIX = re.compile(r"\[(?:DEBUG|INFO|WARNING|WARN|ERROR|EVENT)\] ?(?:TORCHAIR|GE)\b|\[__recompiles")
_VERDICT = re.compile(
    r"(?P<inputs>Static|Dynamic) FX graph compiled to (?P<build>static|dynamic) Ascend GE graph, "
    r"graph id: (?P<graph>\d+)"
)
_OPTIONS = re.compile(r"Compiling concrete graph (?P<graph>\d+) with options:")
_OPTION = re.compile(r"\]\S*\s+(?P<key>[\w.]+) = (?P<value>.*)$")
_INPUTS = re.compile(r"\]\S* compiler inputs\s*$")
_INPUT = re.compile(r"\]\S*\s+input (?P<index>\d+): (?P<what>.+)$")
_FAKE_SIZE = re.compile(r"FakeTensor\(.*?size=\((?P<size>[^()]*)\)")
_SYMBOL = re.compile(r"\b[su]\d+\b")
_RECOMPILING = re.compile(r"\[(?P<id>\d+/\d+)\].*Recompiling function (?P<function>\S+) in ")
_FAILURE = re.compile(r"- (?P<reason>\d+/\d+: .+)$")

TILING = 5
"""The row of the decision table about tiling that reads values."""
_MARK = r"Mark node\[(?P<node>[^,\]]+),(?P<type>[^\]]+)\] force unknown as "
_FORCED = r"Collect node (?P<node>\S+) as unknown as it was marked (?:force )?unknown (?:node )?forcibly"
_PLOG: tuple[tuple[re.Pattern[str], int, bool, str], ...] = (
    (re.compile(_MARK + "dynamic tilingDependent"), TILING, True,
     "its tiling depends on values that are no constants, and it cannot be sunk"),
    (re.compile(r"Node: (?P<node>\S+) is tilingDependent support tiling sink"), TILING, False,
     "its tiling depends on values and is sunk"),
    (re.compile(_MARK + "it does not support address refresh"),
     6, True, "it does not support address refresh"),
    (re.compile(_FORCED), 1, True,
     "an attribute marks it as dynamic by force"),
    (re.compile(r"node (?P<node>\S+) was marked as force unknown shape"), 1, True,
     "an attribute marks it as dynamic by force"),
)  # fmt: skip
"""(GE's words, the row of the decision table, whether the node is dynamic then, our words)."""
_SLOT = re.compile(r"Input\[(?P<slot>\d+)\] of node: (?P<node>\S+) is dynamic tilingDependent")
_SKIPPED = re.compile(r"Skip dynamic shape partition of graph (?P<graph>\S+) as all nodes are known shape")

_KNOWN = (
    "FX graph compiled to static Ascend GE graph, graph id: 0",
    "FX graph compiled to dynamic Ascend GE graph, graph id: 0",
    "force unknown as dynamic tilingDependent",
    "force unknown as it does not support address refresh",
    "is tilingDependent support tiling sink",
)
"""Phrases whose beginning at the very end of a file shows that it was cut off."""
_SHOWS_CUT = 10


def read(text: str, name: str) -> Artefact | None:
    """The log, or None for a text without any line that TorchAir, GE or torch's recompile log writes."""
    lines = text.splitlines()
    if not any(_PREFIX.search(line) for line in lines):
        return None
    if not text.endswith("\n"):
        _refuse_half_a_line(lines, name)
    found = _Log(lines)
    return Artefact(
        name=name,
        forms=tuple(form for form, seen in found.forms().items() if seen),
        compiled=tuple(found.compiled),
        options=found.options,
        fx_inputs=tuple(tuple(inputs) for inputs in found.fx_inputs),
        marks=tuple(found.marked()),
        skipped=tuple(dict.fromkeys(found.skipped)),
        recompiles=tuple(_recompiles(lines)),
    )


def _refuse_half_a_line(lines: list[str], name: str) -> None:
    last = lines[-1]
    for phrase in _KNOWN:
        if any(last.endswith(phrase[:n]) for n in range(_SHOWS_CUT, len(phrase) - 1)):
            raise cut_off(name, f"its last line, {len(lines)}, ends inside '{phrase[:40]}…'")


@define
class _Log:
    """What the lines of TorchAir and GE say, gathered in one pass."""

    lines: list[str]
    compiled: list[Compiled] = field(factory=list)
    options: dict[int, dict[str, str]] = field(factory=dict)
    fx_inputs: list[list[FxInput]] = field(factory=list)
    marks: dict[tuple[str, int], Mark] = field(factory=dict)
    slots: dict[str, list[str]] = field(factory=dict)
    skipped: list[str] = field(factory=list)
    _graph: int | None = None

    def __attrs_post_init__(self) -> None:
        readers: tuple[Callable[[str], bool], ...] = (self._torchair_cpp, self._torchair_python, self._plog)
        for line in self.lines:
            any(reader(line) for reader in readers)

    def forms(self) -> Mapping[Form, bool]:
        return {
            "torchair_verdict": bool(self.compiled),
            "torchair_options": bool(self.options),
            "torchair_inputs": bool(self.fx_inputs),
            "ge_plog": bool(self.marks or self.skipped),
            "torch_recompiles": any(_RECOMPILING.search(line) for line in self.lines),
        }

    def marked(self) -> Iterator[Mark]:
        """GE looks at a node several times; the slots it named before belong to what it says of the tiling."""
        for (node, _), mark in self.marks.items():
            slots = ", ".join(dict.fromkeys(self.slots.get(node, ()))) if mark.row == TILING else ""
            words = f"{mark.words} (input {slots})" if slots else mark.words
            yield Mark(node=node, operator=mark.operator, row=mark.row, dynamic=mark.dynamic, words=words)

    def _torchair_cpp(self, line: str) -> bool:
        if found := _VERDICT.search(line):
            build = "static" if found["build"] == "static" else "dynamic"
            inputs = "static" if found["inputs"] == "Static" else "dynamic"
            self.compiled.append(Compiled(graph=int(found["graph"]), inputs=inputs, build=build))
        elif found := _OPTIONS.search(line):
            self._graph = int(found["graph"])
            self.options[self._graph] = {}
            return True
        elif self._graph is not None and "TORCHAIR" in line and (found := _OPTION.search(line)):
            self.options[self._graph][found["key"]] = found["value"].strip()
            return True
        else:
            return False
        self._graph = None
        return True

    def _torchair_python(self, line: str) -> bool:
        if _INPUTS.search(line):
            self.fx_inputs.append([])
        elif self.fx_inputs and "TORCHAIR" in line and (found := _INPUT.search(line)):
            self.fx_inputs[-1].append(_fx_input(int(found["index"]), found["what"].strip()))
        else:
            return False
        return True

    def _plog(self, line: str) -> bool:
        if found := _SLOT.search(line):
            self.slots.setdefault(found["node"], []).append(found["slot"])
            return True
        if found := _SKIPPED.search(line):
            self.skipped.append(found["graph"])
            return True
        for pattern, row, dynamic, words in _PLOG:
            if found := pattern.search(line):
                node, operator = found["node"].rstrip("."), found.groupdict().get("type")
                self.marks.setdefault(
                    (node, row), Mark(node=node, operator=operator, row=row, dynamic=dynamic, words=words)
                )
                return True
        return False


def _fx_input(index: int, what: str) -> FxInput:
    """`FakeTensor(..., size=(s0, 128))` is a tensor, `s0` a number."""
    tensor = _FAKE_SIZE.search(what)
    if tensor is None:
        return FxInput(index=index, size=None, symbols=tuple(_SYMBOL.findall(what)))
    size = tuple(part.strip() for part in tensor["size"].split(",") if part.strip())
    return FxInput(index=index, size=size, symbols=tuple(s for part in size for s in _SYMBOL.findall(part)))


def _recompiles(lines: list[str]) -> Iterator[Recompile]:
    """torch's log: a line for the function, then one for each entry of the cache that did not fit, the newest first."""
    waiting: tuple[str, str] | None = None
    reasons: list[str] = []
    for line in [*lines, ""]:
        if (found := _RECOMPILING.search(line)) or not line:
            if waiting and reasons:
                yield _recompile(*waiting, reasons)
            waiting, reasons = ((found["id"], found["function"]), []) if found else (None, [])
        elif failure := _FAILURE.search(line):
            reasons.append(failure["reason"])


def _recompile(compile_id: str, function: str, reasons: list[str]) -> Recompile:
    """Told with the advice for dynamic=None: a log does not say which policy was asked for."""
    guards = [guard_of(reason) for reason in reasons]
    arguments = {name for guard in guards for name in (guard.argument, guard.other) if name}
    numbers = {g.argument for g in guards if g.argument and (g.expected or "").replace(".", "", 1).isdigit()}
    asked = AdviceContext(
        shapes=Shapes(dynamic=None), mode="max-autotune", numbers=frozenset(numbers), arguments=tuple(arguments)
    )
    again = Recompilation(compile_id=compile_id, reasons=tuple(reasons))
    return explain_recompilation(again, asked, call={}, name=function)
