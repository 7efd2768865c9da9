"""Error codes of the runtime in logs: the runtime's and ACL's plog, torch_npu's errors with a traceback, servers' logs.

The forms are those of public threads (`sources` of capture/rules.yaml): `rtMemcpy:ErrCode=107030, desc=[…]`,
`synchronized memcpy failed, kind = 1, runtime result = 107030`, `NPU function error: …, error code is 107025`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from attrs import define, evolve, field

from npucompose.errors import ConfigError
from npucompose.npu.capture.codes import error_codes
from npucompose.npu.capture.rules import rules
from npucompose.npu.static_graph.records import Certainty
from npucompose.results.artefacts import CaptureError, FileFacts
from npucompose_devtools.device_files.tracebacks import (
    GOES_ON,
    IN_A_THREAD,
    LONGEST,
    Frame,
    Tracebacks,
    process_of,
    without_prefix,
)

FORM = "the runtime's plog or torch_npu's error with a code of the runtime (107025, 107027, 207008, 507015, …)"

MOST_PROCESSES = 50_000
"""A log of a server of a month has some thousand."""
LONGEST_LINE = 4_000
"""Characters of a line that are searched: a code stands near its beginning."""
_OURS = re.compile(r"\[(?:ERROR|WARNING|INFO|EVENT)\] (?:RUNTIME|ASCENDCL)\(|NPU function error: |ERR00100")
_WITHOUT_CODE = re.compile(
    r"\[ERROR\] (?:RUNTIME|ASCENDCL|HCCL|GE|DRV)\([^\]]{0,200}\](?:\d{1,10} )?(?P<said>.+)"
    r"|\(E[A-Z]\d{4}\): *(?P<words>.+)"
)
"""An error of CANN's without a number that could be looked up."""
_CODES = (
    ("ErrCode=", re.compile(r"(?P<call>\w{1,80}):ErrCode=(?P<code>\d{1,9}), desc=\[(?P<said>[^\[\]]{0,200})\]")),
    ("runtime result", re.compile(
        r"(?:(?P<call>\w{1,80}):)?(?P<said>[A-Za-z][^:\[\]]{0,200}?), runtime result = (?P<code>\d{1,9})")),
    ("NPU function error", re.compile(
        r"NPU function error: (?:call )?(?P<call>[\w:]{1,120})(?P<said>)[^\n]{0,400}?"
        r"error code(?: is |: ?)(?P<code>\d{1,9})")),
    ("failed, error code", re.compile(
        r"(?P<call>acl\w{1,80}|ACL [a-z ]{1,80}) failed(?P<said>), error code(?: is |: ?)(?P<code>\d{1,9})")),
)  # fmt: skip
"""(What a line has to hold, how a code is written: the call that failed, the runtime's words, the code)."""
_OTHERWISE = re.compile(
    r"(?P<call>)(?P<said>)(?i:\berr(?:or)?[ _]?(?:code|no)|\bret(?:urn)?(?:[ _]?(?:code|val|value))?|\bresult|\bstatus)"
    r"\b(?:\s{0,3}(?:is|=|:))?\s{0,3}\[?(?P<code>\d{6})\b"
)
"""Any other form: it is read where the line is of torch_npu's or the runtime's own, or names an error whose
code a public list has."""
_REASON = re.compile(r"execution failed, reason=(?P<said>[^\[\]]{1,200})")
_GENERATOR = "Not support Generator while in capture mode"
"""Of sgl-kernel-npu #138; torch_npu's own sentences are those of the rules."""
_COLLECTIVE = re.compile(r"libhccl\.so|\bhcom\w{0,40}_|\bHccl[A-Z]\w{1,60}")
"""What a stack shows of a collective; a line of it may name no process."""

_SOURCES = {
    "VA": "vllm-project/vllm-ascend", "RT": "hicann/runtime", "CANN": "hiascend.com, CANN",
    "TN": "Ascend/pytorch", "OP": "Ascend/op-plugin", "WHEEL": "the wheel of torch_npu",
}  # fmt: skip
"""The abbreviations of capture/rules.yaml."""

MARKS = (
    'File "', "Traceback (", IN_A_THREAD, *GOES_ON, "rrCode", "rrNo", "rror", "runtime result", "execution failed",
    "libhccl", "hcom", "Hccl", "RUNTIME(", "ASCENDCL(", "ERR", "(EE", "(EZ", "(EI", "(EL", "(EH", "(EJ",
)  # fmt: skip
"""One of these is in every line that says something; the others are passed over quickly."""

_BY_LINE: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("conditional", re.compile(r"torch\.cond\(")),
    ("synchronise", re.compile(r"synchronize\(|\.query\(|empty_cache\(|barrier\(")),
    ("data_shape", re.compile(
        r"\b(?:nonzero|unique|unique_consecutive|masked_select|bincount)\(|\[[^\[\]]*[<>!=]=?[^\[\]]*\]")),
    ("host_read", re.compile(r"\.(?:item|tolist)\(\)|\b(?:int|float|bool)\(|^(?:if|elif|while|assert)\b")),
    ("outside_copy", re.compile(r"\.item\(\)")),
    ("pageable_copy", re.compile(r"non_blocking=True")),
    ("outside_pageable", re.compile(r"non_blocking=True")),
    ("sync_copy", re.compile(
        r"\.(?:cpu|npu|cuda|numpy|tolist)\(|\.to\(|\.copy_\(|torch\.(?:tensor|as_tensor|from_numpy)\(|\.pin_memory\(")),
    ("nested_capture", re.compile(r"npu\.graph\(|capture_begin\(")),
    ("nested_replay", re.compile(r"\.replay\(")),
    ("task_update", re.compile(r"graph_task_update")),
    ("ipc_event", re.compile(r"interprocess=True")),
    ("border_event", re.compile(r"\.wait_event\(|\.wait_stream\(|\.wait\(")),
    ("unjoined_collective", re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast\(|dist\.")),
)  # fmt: skip
"""(rule, what the model's line looks like then), the surest first."""
_BY_CALL: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("pageable_copy", re.compile(r"(?i)memcpy\w*async|async\w* memcpy")),
    ("nested_capture", re.compile(r"(?i)capture_?begin|begin_?capture|begin capture")),
    ("nested_replay", re.compile(r"(?i)riexecute|model_?execute")),
    ("task_update", re.compile(r"(?i)task_?update")),
    ("synchronise", re.compile(r"(?i)synchronize_?device|device_?synchronize|stream_?query")),
    ("ipc_event", re.compile(r"(?i)record_?event|event_?record|wait_?event")),
)
"""(rule, what the call that failed is named then)."""
_OF_MANY_CAUSES = frozenset({107000, 207000})
"""Codes that only a call or a line makes one of a capture: elsewhere an argument, or a driver, is wrong."""


def read(text: str, name: str) -> FileFacts | None:
    """Its errors; None for a text that neither the runtime, ACL nor torch_npu wrote.

    A log of theirs without a code of a capture has no errors.
    """
    log = RuntimeLog()
    for number, line in enumerate(text.splitlines(), 1):
        log.take(number, line)
    return log.facts()


@define
class _Seen:
    """One code of one process at one line of the model."""

    code: int | None
    process: str
    line: int
    frame: Frame | None
    rule: str | None = None
    """Of one of torch_npu's own sentences."""
    foreign: bool = False
    """The runtime's words are not those of our lists."""
    calls: dict[str, None] = field(factory=dict[str, None])
    words: dict[str, None] = field(factory=dict[str, None])
    times: int = 0
    in_thread: bool = False
    collective: bool = False


@define
class RuntimeLog:
    """One pass over a log, of any length: what is kept are its processes, and each code once."""

    ours: bool = False
    tracebacks: Tracebacks = field(factory=Tracebacks)
    seen: dict[tuple[str, int | str | None], _Seen] = field(factory=dict[tuple[str, "int | str | None"], _Seen])
    collective: set[str] = field(factory=set[str])
    reasons: dict[str, str] = field(factory=dict[str, str])
    first: dict[str, int] = field(factory=dict[str, int])
    without_code: dict[str, tuple[int, str]] = field(factory=dict[str, tuple[int, str]])
    """The first error of each process that names no code."""

    @property
    def waits(self) -> bool:
        """Whether the next line may say something without a mark."""
        return self.tracebacks.waits

    def facts(self) -> FileFacts | None:
        return FileFacts(errors=tuple(self.errors())) if self.ours else None

    def take(self, number: int, whole: str) -> None:
        line = whole[:LONGEST_LINE]
        sentence = next((said for said in _sentences() if said in line), None)
        if not (sentence or self.tracebacks.waits or any(mark in line for mark in MARKS)):
            return
        process = process_of(line) or ""
        if len(self.seen) + len(self.without_code) + self.tracebacks.processes > MOST_PROCESSES:
            raise ConfigError(
                f"line {number}: the log has errors of more than {MOST_PROCESSES:,} processes: cut it to one."
            )
        own = without_prefix(line)
        self.tracebacks.take(process, own)
        if _COLLECTIVE.search(own):
            self.collective.add(process)
        if reason := _REASON.search(own):
            self.reasons[process] = reason["said"].strip()
        own_form = bool(_OURS.search(line) or _WITHOUT_CODE.search(line))
        self.ours |= own_form
        if sentence is not None:
            self.ours = True
            self._note(number, process, None, "", sentence, rule=_sentences()[sentence])
            return
        codes = _codes_in(own, cut=len(line) == LONGEST_LINE, ours=own_form)
        printed = () if codes else tuple(one for one in error_codes().sentences if one in own)
        self.ours |= bool(codes or printed)
        for found in codes:
            code, said = int(found["code"]), found["said"].strip()
            self._note(number, process, code, found["call"] or "", said, foreign=_foreign(code, found))
        for words in printed:
            self._note(number, process, error_codes().sentences[words], "", words)
        if not codes and not printed and (other := _WITHOUT_CODE.search(line)):
            words = (other["said"] or other["words"]).strip()
            self.without_code.setdefault(process, (number, words[:LONGEST]))

    def _note(self, number: int, process: str, code: int | None, call: str, said: str, *,
              rule: str | None = None, foreign: bool = False) -> None:  # fmt: skip
        one = self.seen.setdefault((process, code or rule), _Seen(code, process, number, None, rule))
        one.foreign |= foreign
        one.frame = one.frame or self.tracebacks.innermost(process)
        one.times += 1
        one.in_thread |= process in self.tracebacks.in_thread
        one.collective |= not self.collective.isdisjoint((process, ""))
        if call:
            one.calls[call.rpartition("::")[2]] = None
        if words := said or self.reasons.get(process, ""):
            one.words[words] = None
        if code is not None:
            self.first.setdefault(process, code)

    def errors(self) -> list[CaptureError]:
        """One for each code and line of the model, in the order of the log; of several processes, added."""
        for process, (number, words) in self.without_code.items():
            if not any(one.process == process for one in self.seen.values()):
                self._note(number, process, None, "", words)
        found: dict[tuple[int | None, str | None], CaptureError] = {}
        for one in sorted(self.seen.values(), key=lambda one: one.line):
            error = _error(one, self.first.get(one.process))
            key = (error.code, error.source)
            before = found.get(key)
            found[key] = error if before is None else evolve(before, times=before.times + error.times)
        return _merged(list(found.values()))


def _merged(errors: list[CaptureError]) -> list[CaptureError]:
    """What has no line of the model is counted to the same code where that has one."""
    with_line = {error.code: error for error in reversed(errors) if error.source is not None}
    alone = {error.code: error for error in errors if error.source is None and error.code in with_line}
    merged: list[CaptureError] = []
    for error in errors:
        if error is alone.get(error.code):
            continue
        other = alone.get(error.code) if error is with_line.get(error.code) else None
        more = {} if other is None else {"times": error.times + other.times, "line": min(error.line, other.line)}
        merged.append(evolve(error, **more))
    return sorted(merged, key=lambda error: error.line)


def marks() -> tuple[str, ...]:
    """One of these is in every line that says something, but for the code of a frame."""
    return (*MARKS, *_sentences())


@cache
def _sentences() -> Mapping[str, str]:
    """{a sentence of torch_npu's own: its rule}."""
    own = {
        rule.raises.rstrip("."): name
        for name, rule in rules().rules.items()
        if rule.raises is not None and rule.sources[0].startswith(("TN ", "OP ", "Ascend/pytorch"))
    }
    return {**own, _GENERATOR: "generator_unknown"}


def _codes_in(line: str, *, cut: bool, ours: bool) -> list[re.Match[str]]:
    """Each code of a line once, in its order; at the end of a line that was cut it may not be whole."""
    found = [found for mark, pattern in _CODES if mark in line for found in pattern.finditer(line)]
    known = {int(one["code"]) for one in found}
    found += [
        one
        for one in _OTHERWISE.finditer(line)
        if int(one["code"]) not in known
        and (ours or (one[0][:3].lower() == "err" and int(one["code"]) in error_codes().codes))
    ]
    known = error_codes().codes.keys()
    whole = (one for one in found if int(one["code"]) in known or not cut or one.end() < len(line))
    each = {int(one["code"]): one for one in sorted(whole, key=lambda one: -one.start("code"))}
    return list(each.values())[::-1]


def _foreign(code: int, found: re.Match[str]) -> bool:
    """The runtime itself says the code in words that our lists have not."""
    row = error_codes().codes.get(code)
    says = () if row is None else row.says
    printed = found["said"].strip().rstrip(".")
    return "desc=[" in found[0] and bool(says) and not any(said.startswith(printed) for said in says)


def _error(one: _Seen, first: int | None) -> CaptureError:
    known = error_codes().codes.get(one.code or 0)
    among, standing = _narrowed(_candidates(one), one)
    fitting = _fitting(among, one)
    among = (*fitting, *(name for name in among if name not in fitting))
    table = [rules().of(name) for name in among]
    call = ", ".join(one.calls)
    words = next(iter(one.words), "")
    fixes = tuple(dict.fromkeys(rule.fix for rule in table))
    return CaptureError(
        code=one.code,
        said=f"{call}: {words}" if call and words else call or words,
        means=None if known is None else f"{known.name}: {known.means}",
        rule=among[0] if len(among) == 1 else None,
        among=among,
        fitting=fitting,
        forbids=tuple(rule.forbids for rule in table),
        fixes=fixes or (_fix(one.code),),
        source=None if one.frame is None else one.frame.words,
        standing=standing,
        times=one.times,
        line=one.line,
        after=first if first not in (None, one.code) else None,
        remark=_remark(one),
        threads=tuple(dict.fromkeys(_spelled(source) for rule in table for source in rule.sources)),
    )


def _fix(code: int | None) -> str:
    if code is None or code not in error_codes().codes:
        return "look the code up in the documents of the CANN that wrote the log"
    return error_codes().fix_of(code)


def _remark(one: _Seen) -> str | None:
    """Of another CANN, and of an error without a code."""
    version = error_codes().version
    if one.code is None and one.rule is None:
        return "the line names no code, and no other line of its process does: it is shown as it stands"
    if one.code is not None and one.code not in error_codes().codes:
        return f"no public list of {version} has this code: another CANN wrote the log"
    return f"{version} says this code in other words: another CANN wrote the log" if one.foreign else None


def _candidates(one: _Seen) -> tuple[str, ...]:
    """The rules that the code may mean."""
    return (one.rule,) if one.rule is not None else error_codes().rules_of(one.code or 0)


def _fitting(among: tuple[str, ...], one: _Seen) -> tuple[str, ...]:
    """Of several rules those that the log's own call breaks: `AclrtSynchronizeStream` waits for a stream."""
    called = [_bare(call) for call in one.calls]
    calls = {name: rules().of(name).call for name in among}
    return tuple(
        name for name, call in calls.items() if call and any(_bare(call).startswith(one) for one in called if one)
    )


def _bare(call: str) -> str:
    """`synchronizestream` of aclrtSynchronizeStream."""
    return re.sub("^(?:acl)?(?:rt|rts|mdlri)?", "", call.lower())


def _spelled(source: str) -> str:
    """As a person finds it: `VA #6002: …` is `vllm-project/vllm-ascend #6002: …`."""
    for short, whole in _SOURCES.items():
        source = re.sub(rf"^{short}\b", whole, source)
    return source


def _narrowed(among: tuple[str, ...], one: _Seen) -> tuple[tuple[str, ...], Certainty]:
    """The rules that remain, and how sure that is."""
    if not among:
        return among, "proven" if one.code in error_codes().codes else "unknown"
    if len(among) == 1 and one.code not in _OF_MANY_CAUSES:
        return among, "proven"
    if one.in_thread and "other_thread" in among:
        return ("other_thread",), "derived"
    code = one.frame.code if one.frame is not None else ""
    for rule, pattern in _BY_LINE:
        if rule in among and pattern.search(code):
            return (rule,), "derived"
    if one.collective and "unjoined_collective" in among:
        return ("unjoined_collective",), "derived"
    called = " ".join((*one.calls, *one.words))
    for rule, pattern in _BY_CALL:
        if rule in among and pattern.search(called):
            return (rule,), "derived"
    return ((), "proven") if one.code in _OF_MANY_CAUSES else (among, "unknown")
