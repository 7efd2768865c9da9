"""Logs, line by line: TorchAir's C++ and Python layers, GE's plog about its shape partition, torch's recompilations.

A log may hold all of them between other lines, with or without the prefix of a grep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import define, field

from npucompose.errors import ConfigError
from npucompose.npu.static_graph.recompiles import AdviceContext, Recompilation, explain_recompilation, guard_of
from npucompose.results.record import Recompile
from npucompose.schema.experiment import Shapes
from npucompose_devtools.artefacts.artefact import Artefact, Compiled, Form, FxInput, Mark
from npucompose_devtools.artefacts.text import LONGEST_LINE, cut_off

_PREFIX = re.compile(r"\[(?:DEBUG|INFO|WARNING|WARN|ERROR|EVENT)\] ?(?:TORCHAIR|GE)\b|\[__recompiles")
_VERDICT = re.compile(
    r"(?P<inputs>Static|Dynamic) FX graph compiled to (?P<build>static|dynamic) Ascend GE graph, "
    r"graph id: (?P<graph>\d+)"
)
_OPTIONS = re.compile(r"Compiling concrete graph (?P<graph>\d+) with options:")
_OPTION = re.compile(r"\][^\s\]]*\s{1,40}(?P<key>[\w.]{1,200}) = (?P<value>.*)$")
_INPUTS = re.compile(r"\][^\s\]]* compiler inputs$")
_INPUT = re.compile(r"\][^\s\]]*\s{1,40}input (?P<index>\d{1,9}): (?P<what>.+)$")
_FAKE_SIZE = re.compile(r"size=\((?P<size>[^()]*)\)")
_SYMBOL = re.compile(r"\b[su]\d+\b")
_RECOMPILING, _ID = re.compile(r"Recompiling function (?P<function>\S+) in "), re.compile(r"\[(\d{1,9}/\d{1,9})\]")
_FAILURE = re.compile(r"- (?P<reason>\d{1,9}/\d{1,9}: .+)$")

TILING = 5
"""The row of the decision table about tiling that reads values."""
_MARK = r"Mark node\[(?P<node>[^,\[\]]{1,500}),(?P<type>[^\[\]]{1,500})\] force unknown as "
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
MARKS = (
    "TORCHAIR", "] GE", "]GE", "__recompiles", "FX graph compiled to", "Compiling concrete graph", "compiler inputs",
    "force unknown", "unknown ", "tilingDependent", "Skip dynamic shape partition", "Recompiling function",
)  # fmt: skip
"""One of these is in every line that says something; the others are passed over quickly."""
LONGEST_REASON = 4_000
"""Characters of a guard that failed."""
MOST_LINES = 200_000
"""That say something: a server of a thousand graphs writes some 50,000."""


def read(text: str, name: str) -> Artefact | None:
    """The log, or None for a text without any line that TorchAir, GE or torch's recompile log writes."""
    log = CompilerLog(name)
    for line in text.splitlines():
        log.take(line)
    return log.artefact(ends=text.endswith("\n"))


@define
class CompilerLog:
    """What the lines of TorchAir, GE and torch say, gathered in one pass over a log of any length."""

    name: str
    ours: bool = False
    lines: int = 0
    last: str = ""
    compiled: list[Compiled] = field(factory=list)
    options: dict[int, dict[str, str]] = field(factory=dict)
    fx_inputs: list[list[FxInput]] = field(factory=list)
    marks: dict[tuple[str, int], Mark] = field(factory=dict)
    slots: dict[str, dict[str, None]] = field(factory=dict)
    skipped: dict[str, None] = field(factory=dict)
    recompiles: list[Recompile] = field(factory=list)
    recompiled: bool = False
    gathered: int = 0
    """Lines that said something."""
    _graph: int | None = None
    _waiting: tuple[str, str] | None = None
    _reasons: list[str] = field(factory=list)

    @property
    def waits(self) -> bool:
        """Whether the next line may say something without a mark."""
        return self._waiting is not None

    def pass_over(self, lines: int, last: str) -> None:
        """Lines without a mark."""
        self.lines, self.last = self.lines + lines, last

    def take(self, line: str) -> None:
        self.lines += 1
        self.last = line
        if not (any(mark in line for mark in MARKS) or (self._waiting and "/" in line)):
            return
        line = line[:LONGEST_LINE].rstrip()
        self.ours = self.ours or bool(_PREFIX.search(line))
        readers: tuple[Callable[[str], bool], ...] = (self._torchair_cpp, self._torchair_python, self._plog)
        self.gathered += any([any(reader(line) for reader in readers), self._recompiles(line)])
        if self.gathered > MOST_LINES:
            raise ConfigError(
                f"{self.name} has more than {MOST_LINES:,} lines about graphs: cut it to the process in question."
            )

    def artefact(self, *, ends: bool) -> Artefact | None:
        """The facts; None where no line is theirs. `ends`: the last line is whole."""
        if not self.ours:
            return None
        if not ends:
            self._refuse_half_a_line()
        self._end_recompile()
        return Artefact(
            name=self.name,
            forms=tuple(form for form, seen in self.forms().items() if seen),
            compiled=tuple(self.compiled),
            options=self.options,
            fx_inputs=tuple(tuple(inputs) for inputs in self.fx_inputs),
            marks=tuple(self.marked()),
            skipped=tuple(self.skipped),
            recompiles=tuple(self.recompiles),
        )

    def _refuse_half_a_line(self) -> None:
        for phrase in _KNOWN:
            if any(self.last.endswith(phrase[:n]) for n in range(_SHOWS_CUT, len(phrase) - 1)):
                raise cut_off(self.name, f"its last line, {self.lines}, ends inside '{phrase[:40]}…'")

    def forms(self) -> Mapping[Form, bool]:
        return {
            "torchair_verdict": bool(self.compiled),
            "torchair_options": bool(self.options),
            "torchair_inputs": bool(self.fx_inputs),
            "ge_plog": bool(self.marks or self.skipped),
            "torch_recompiles": self.recompiled,
        }

    def marked(self) -> Iterator[Mark]:
        """GE looks at a node several times; the slots it named before belong to what it says of the tiling."""
        for (node, _), mark in self.marks.items():
            slots = ", ".join(self.slots.get(node, ())) if mark.row == TILING else ""
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
            self.slots.setdefault(found["node"], {})[found["slot"]] = None
            return True
        if found := _SKIPPED.search(line):
            self.skipped[found["graph"]] = None
            return True
        for pattern, row, dynamic, words in _PLOG:
            if found := pattern.search(line):
                node, operator = found["node"].rstrip("."), found.groupdict().get("type")
                self.marks.setdefault(
                    (node, row), Mark(node=node, operator=operator, row=row, dynamic=dynamic, words=words)
                )
                return True
        return False

    def _recompiles(self, line: str) -> bool:
        """torch's: a line for the function, then one for each entry of the cache that did not fit, the newest first."""
        if (found := _RECOMPILING.search(line)) and (number := _ID.search(line, 0, found.start())):
            self._end_recompile()
            self._waiting, self.recompiled = (number[1], found["function"]), True
            return True
        if self._waiting and (failure := _FAILURE.search(line)):
            self._reasons.append(failure["reason"][:LONGEST_REASON])
            return True
        return False

    def _end_recompile(self) -> None:
        if self._waiting and self._reasons:
            self.recompiles.append(_recompile(*self._waiting, self._reasons))
        self._waiting, self._reasons = None, []


def _fx_input(index: int, what: str) -> FxInput:
    """`FakeTensor(..., size=(s0, 128))` is a tensor, `s0` a number."""
    tensor = _FAKE_SIZE.search(what) if "FakeTensor(" in what else None
    if tensor is None:
        return FxInput(index=index, size=None, symbols=tuple(_SYMBOL.findall(what)))
    size = tuple(part.strip() for part in tensor["size"].split(",") if part.strip())
    return FxInput(index=index, size=size, symbols=tuple(s for part in size for s in _SYMBOL.findall(part)))


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
