"""Errors in torch_npu's own form: what its library refuses (`checks.yaml`), what the runtime answers
(npu/capture/rules.yaml).

`library_error("replay_without_capture")`, `runtime_error(rules().of("synchronise"), "torch.npu.synchronize()")`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from attrs import frozen

from npucompose.errors import ConfigError, unknown
from npucompose.input_safety import load_yaml
from npucompose.npu.capture.rules import CaptureMode, CaptureRule
from npucompose.table.options import option
from npucompose.table.structure import structure

FILE = Path(__file__).with_name("checks.yaml")
OF_THE_RUNTIME = "ERR00100 PTA call acl api failed"
"""How torch_npu goes on where the runtime has answered with a code."""


@frozen(kw_only=True)
class LibraryCheck:
    """One row: what torch_npu's library refuses before CANN is asked."""

    raises: str
    sources: tuple[str, ...]
    error: str | None = None
    code: int | None = None
    why: str | None = None
    """What the simulator says below the answer."""


@frozen(kw_only=True)
class LibraryChecks:
    """The table, and what the library says of a code."""

    version: int
    calls: Mapping[str, str] = option(factory=dict)
    """{what was done: the call that torch_npu names}, where it is not that of the rule."""
    meanings: Mapping[int, str] = option(factory=dict)
    checks: Mapping[str, LibraryCheck] = option(factory=dict)

    def of(self, name: str) -> LibraryCheck:
        """The row of that name; ConfigError where there is none."""
        if name not in self.checks:
            raise ConfigError(unknown("check of torch_npu", name, tuple(self.checks)))
        return self.checks[name]


@cache
def checks() -> LibraryChecks:
    """The table of this version."""
    return structure(LibraryChecks, load_yaml(FILE), "simulator/checks.yaml")


def library_error(name: str, **words: object) -> RuntimeError:
    """The error of that row; its sentence as torch_npu raises it."""
    row = checks().of(name)
    sentence = row.raises.format(**words)
    why = "" if row.why is None else f"\nsimulator: {row.why.format(**words)}."
    if row.code is not None:
        return RuntimeError(f"{_answered(sentence, row.code)}{why}")
    return RuntimeError(sentence if row.error is None else f"{sentence}{_kind(row.error)}")


def runtime_error(
    rule: CaptureRule, what: str, source: str | None = None, mode: CaptureMode = "global", fix: str | None = None
) -> RuntimeError:
    """The answer to what a rule forbids, and below it what was done, where, and what to write instead (`fix`, or what
    the rule says)."""
    at = f" at {source}" if source else ""
    why = f"\nsimulator: {what}{at}: {rule.forbids}. Instead: {fix or rule.fix}."
    if rule.raises is not None:
        code = "" if rule.code is None else f" The runtime's code is {rule.code}."
        return RuntimeError(f"{rule.raises}{why}{code}")
    call = checks().calls.get(what, rule.call or "")
    assert rule.code is not None
    if not rule.first:
        return RuntimeError(f"{_answered(call, rule.code)}{why}")
    synchronised = checks().of("synchronised_copy").raises.format(code=rule.code)
    first = rule.first.get(mode)
    return RuntimeError(synchronised + why if first is None else f"{_answered(call, first)}\n{synchronised}{why}")


def _answered(call: str, code: int) -> str:
    meaning = checks().meanings.get(code)
    return f"NPU function error: {call}, error code is {code}{_kind(OF_THE_RUNTIME)}" + (
        "." if meaning is None else f"\n[Error]: {meaning}"
    )


def _kind(error: str) -> str:
    """The line below the sentence: when, in which process, on which device, which kind of error."""
    when = time.strftime("%Y-%m-%d-%H:%M:%S")
    return f"\n[ERROR] {when} (PID:{os.getpid()}, Device:0, RankID:-1) {error}"
