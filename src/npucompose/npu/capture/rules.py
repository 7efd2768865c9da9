"""The rules of a capture as data (`rules.yaml`): what is forbidden, the runtime's code, the fix, the source; what each
function and operator does to a capture (`calls.yaml`); words for races. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.input_safety import load_yaml
from npucompose.races import Race, RaceKind
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose.vendor.versions import order_of

FILE = Path(__file__).with_name("rules.yaml")
CaptureMode = Literal["global", "thread_local", "relaxed"]
CAPTURE_MODES: tuple[CaptureMode, ...] = get_args(CaptureMode)


@frozen(kw_only=True)
class CaptureRule:
    """One row: `CaptureRule(code=107027, forbids="the host reads …", fix="torch.where(…)", sources=("…",))`."""

    code: int | None
    """What the runtime answers; None where torch_npu or torch refuses before the runtime is asked."""
    forbids: str
    fix: str
    sources: tuple[str, ...]
    also: tuple[int, ...] = ()
    """Further codes that the same line leaves in a log."""
    first: Mapping[CaptureMode, int] = option(factory=dict)
    """{capture_error_mode: the code that torch_npu raises there}, where it is another one than `code`."""
    call: str | None = None
    """The function whose answer torch_npu raises."""
    raises: str | None = None
    """The sentence that torch_npu raises itself."""
    modes: tuple[CaptureMode, ...] = CAPTURE_MODES
    """The capture_error_modes in which the rule holds."""
    invalidates: bool = False
    """The capture is lost, and its end answers `capture_lost`."""
    race: bool = False
    """Nothing is refused: a capture holds the work, and what a replay gives depends on how long its tasks take."""
    standing: Literal["proven", "derived"] = "proven"
    """How it is known that the rule is broken: seen in the call, or concluded from what another part would do."""
    since: str | None = None
    until: str | None = None
    """Versions of torch_npu from which, and before which, the rule holds; None: every one."""

    def holds(self, torch_npu: str | None) -> bool:
        """Whether it forbids something in that version; None stands for every version."""
        if torch_npu is None:
            return True
        begun = self.since is None or order_of(torch_npu) >= order_of(self.since)
        over = self.until is not None and order_of(torch_npu) >= order_of(self.until)
        return begun and not over


@frozen(kw_only=True)
class CaptureNote:
    """What a capture holds, and is not promised."""

    says: str
    """What a line of the model does, one clause."""
    sources: tuple[str, ...]


@frozen(kw_only=True)
class CaptureRules:
    """The table: `rules().of("host_read").code` is 107027."""

    version: int
    notes: Mapping[str, CaptureNote] = option(factory=dict)
    rules: Mapping[str, CaptureRule] = option(factory=dict)

    def of(self, name: str) -> CaptureRule:
        """The row of that name; ConfigError where there is none."""
        if name not in self.rules:
            raise ConfigError(unknown("capture rule", name, tuple(self.rules)))
        return self.rules[name]


@cache
def rules() -> CaptureRules:
    """The table of this version."""
    return structure(CaptureRules, load_yaml(FILE), "capture/rules.yaml")


# What functions and operators do to a capture, as data (`calls.yaml`): which synchronise, copy, draw, change streams.

CALLS = Path(__file__).with_name("calls.yaml")
Effect = Literal[
    "synchronises", "reads", "copies", "allocates", "draws", "streams", "captures", "asks", "sets", "launches"
]


@frozen(kw_only=True)
class CaptureCall:
    """One row: `CaptureCall(does="synchronises", rule="synchronise", at="TN core/npu/NPUStream.cpp:735")`."""

    does: Effect
    rule: str | None = None
    """The rule that a call breaks on a captured stream; None: it is legal, or `unknown` says why that is not known."""
    gives: Any = None
    """What a machine without a device answers."""
    unknown: str | None = None
    when: str | None = None
    """The case of an operator that the rule is about; None: every one."""
    at: str | None = None


@frozen(kw_only=True)
class CaptureCalls:
    """The table: `calls().npu["empty_cache"].rule` is "synchronise"."""

    version: int
    npu: Mapping[str, CaptureCall]
    """Functions of torch.npu."""
    compiled: Mapping[str, CaptureCall]
    """Functions of torch_npu._C."""
    methods: Mapping[str, CaptureCall]
    """`Stream.synchronize` and its like."""
    operators: Mapping[str, CaptureCall]
    """`aten::nonzero`: an operator without its overload."""


@cache
def calls() -> CaptureCalls:
    """The table of this version."""
    tree = load_yaml(CALLS)
    apart = {key: _apart(rows) if isinstance(rows, dict) else rows for key, rows in tree.items()}
    return structure(CaptureCalls, apart, "capture/calls.yaml")


def _apart(rows: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a b": row}` as `{"a": row, "b": row}`."""
    return {name: row for names, row in rows.items() for name in names.split()}


# Words for the races of a capture: what is done where, and the wait that is missing.

RULE_OF_RACE: Mapping[RaceKind, str] = {
    "read": "unordered_read", "overwrite": "unordered_overwrite", "write": "unordered_write",
    "reuse": "unordered_reuse",
}  # fmt: skip
"""{what the later task does: the row of rules.yaml}."""
_DOES: Mapping[RaceKind, str] = {
    "read": "reads, unordered, the", "overwrite": "overwrites, unordered, the", "write": "writes, unordered, the",
    "reuse": "writes, unordered, in memory of a dropped",
}  # fmt: skip


def race_words(race: Race, name: Callable[[int], str]) -> str:
    """`aten.add on the capturing stream reads, unordered, the float32[4, 4] that aten.mul on stream 2 writes (…)`."""
    first, then = race.first, race.then
    did = "writes" if race.writes_first else "reads"
    at = f" ({first.source})" if first.source else ""
    met = "" if race.sure else ", perhaps other elements of it,"
    return (
        f"{then.what} on {name(then.stream)} {_DOES[race.kind]} {race.value} that {first.what} on {name(first.stream)} "
        f"{did}{met}{at}"
    )


def missing_wait(race: Race, name: Callable[[int], str]) -> str:
    """What orders the two: `let the capturing stream wait for stream 2 between m.py:9 and m.py:11: …`."""
    first, then = race.first, race.then
    wait = f"let {name(then.stream)} wait for {name(first.stream)}{_between_lines(first.source, then.source)}"
    if race.kind == "reuse":
        return f"tensor.record_stream of {name(first.stream)} before the tensor is dropped, or {wait}"
    return f"{wait}: event.record() on {name(first.stream)}, then event.wait() on {name(then.stream)}"


def _between_lines(first: str | None, then: str | None) -> str:
    """` between m.py:9 and m.py:11`."""
    places = [source.partition(" in ")[0] for source in (first, then) if source is not None]
    return f" between {' and '.join(places)}" if len(places) == 2 else ""
