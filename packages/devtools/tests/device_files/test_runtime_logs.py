"""Error codes of a capture in logs: each public code, as the runtime's plog and as torch_npu's error."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import yaml
from rich.console import Console

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.npu.capture import artefacts
from npucompose.npu.capture.codes import error_codes
from npucompose.npu.capture.rules import rules
from npucompose.results.artefacts import CaptureError, FileFacts
from npucompose.table.structure import facts_of
from npucompose_devtools.artefacts import read
from npucompose_devtools.device_files import runtime_logs
from npucompose_devtools.device_files.tracebacks import without_prefix

WORKER = "(Worker_TP1 pid=4367) ERROR 06-17 11:49:59 [multiproc_executor.py:962] "

CODES: list[tuple[int, str, str, str, str]] = [
    # code, the call that failed, the model's line, the rule by the plog alone, by the line
    (107000, "rtMemcpyAsync", "y = host.to(device, non_blocking=True)", "pageable_copy", "pageable_copy"),
    (107024, "rtStreamWaitEvent", "loaded.wait()", "border_event", "border_event"),
    (107025, "rtStreamEndCapture", "dist.all_reduce(y, async_op=True)", "", "unjoined_collective"),
    (107026, "rtModelDestroy", "graph.reset()", "still_captured", "still_captured"),
    (107027, "rtStreamSynchronize", "n = lengths.max().item()", "", "host_read"),
    (107028, "rtEventSynchronize", "done.synchronize()", "event_wait", "event_wait"),
    (107029, "rtStreamEndCapture", "group.begin()", "not_capturing", "not_capturing"),
    (107030, "rtMemcpy", "mask = mask.cpu()", "", "sync_copy"),
    (107031, "rtStreamWaitEvent", "stream.wait_event(e)", "default_stream_waits", "default_stream_waits"),
    (107032, "rtStreamWaitEvent", "side.wait_event(ready)", "crossed_captures", "crossed_captures"),
    (107033, "rtsStreamEndTaskGrp", "handle = end(stream)", "task_group", "task_group"),
    (107034, "rtsStreamEndTaskGrp", "handle = end(stream)", "task_group_broken", "task_group_broken"),
    (107036, "rtStreamEndCapture", "graph.capture_end()", "unmatched_end", "unmatched_end"),
    (107037, "rtModelDestroy", "graph.reset()", "still_running", "still_running"),
    (107038, "rtStreamEndCapture", "graph.capture_end()", "wrong_thread", "wrong_thread"),
    (107041, "rtMemcpyAsync", "y = step.to(device, non_blocking=True)", "", "outside_pageable"),
    (107045, "rtStreamEndCapture", "y = torch.cond(p, f, g, (x,))", "branch_open", "branch_open"),
    (207000, "rtEventRecord", "event = torch.npu.Event(interprocess=True)", "ipc_event", "ipc_event"),
    (207005, "rtStreamWaitEvent", "y = self.layer(x)", "memory_exhausted", "memory_exhausted"),
    (207008, "rtStreamBeginCapture", "graph.capture_begin()", "streams_exhausted", "streams_exhausted"),
    (507903, "rtStreamEndCapture", "graph.capture_end()", "capture_lost", "capture_lost"),
]


def said_by(code: int, call: str) -> str:
    """As the runtime of our lists prints it."""
    return f"{call}:ErrCode={code}, desc=[{error_codes().codes[code].says[0]}]"


SAID = {code: said_by(code, call) for code, call, *_ in CODES}


def plog(code: int, said: str) -> str:
    return (
        f"[ERROR] RUNTIME(8099,4):2026-07-11-15:11:05.293.967 [api_c.cc:1081]8099 {said}, InnerCode=0x7030000\n"
        f"[ERROR] ASCENDCL(8099,4):2026-07-11-15:11:05.294.152 [m.cpp:60]8099 call:it failed, runtime result = {code}\n"
    )


def traceback(code: int, line: str, prefix: str = "") -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/srv/app/run.py", line 9, in main',
        "    model(x)",
        '  File "/usr/local/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1776, in _wrapped_call_impl',
        "    return self._call_impl(*args, **kwargs)",
        '  File "/srv/app/model.py", line 31, in forward',
        f"    {line}",
        "    ^^^^^^^^",
        '  File "/usr/local/lib/python3.11/site-packages/torch_npu/npu/graphs.py", line 75, in end',
        "    _end(stream)",
        f"RuntimeError: end:Graph.cpp:48 NPU function error: c10_npu::acl::AclCall(stream), error code is {code}",
        "[ERROR] 2026-06-17-11:49:59 (PID:4367, Device:1, RankID:-1) ERR00100 PTA call acl api failed",
        "EE9999[PID: 4367] 2026-06-17-11:49:59.333.923 (EE9999):  it failed",
        "        TraceBack (most recent call last):",
    )
    return "".join(f"{prefix}{one}\n" for one in lines)


def errors(text: str) -> tuple[CaptureError, ...]:
    found = runtime_logs.read(text, "a.log")
    assert found is not None
    return found.errors


def test_the_cases_are_the_codes_of_the_table() -> None:
    assert {code for code, *_ in CODES} == {rule.code for rule in rules().rules.values() if rule.code is not None}


@pytest.mark.parametrize(("code", "call", "line", "by_plog", "by_line"), CODES, ids=[str(case[0]) for case in CODES])
def test_a_code_is_found_in_both_forms_with_rule_fix_and_threads(
    code: int, call: str, line: str, by_plog: str, by_line: str
) -> None:
    (alone,) = errors(plog(code, SAID[code]))
    assert (alone.code, alone.rule, alone.times, alone.line, alone.source) == (code, by_plog or None, 2, 1, None)
    assert alone.said.startswith(call)
    assert alone.means is not None
    assert alone.means.startswith("ACL_ERROR_")
    assert alone.remark is None
    known = error_codes().rules_of(code)
    assert set(alone.among) <= set(known)
    several = len(known) > 1 or code in (107000, 207000)
    assert alone.standing == ("proven" if not several else "derived" if by_plog else "unknown")
    (traced,) = errors(traceback(code, line))
    assert (traced.code, traced.rule) == (code, by_line)
    assert traced.source == f"model.py:31 in forward: {line}"
    rule = rules().of(by_line)
    assert traced.forbids == (rule.forbids,)
    assert traced.fixes == (rule.fix,)
    assert len(traced.threads) == len(rule.sources)
    assert not any(thread.startswith(("VA ", "RT ", "TN ")) for thread in traced.threads)


@pytest.mark.parametrize("code", sorted(error_codes().codes))
def test_every_public_code_is_read_with_its_meaning_and_what_mends_it(code: int) -> None:
    (found,) = errors(traceback(code, "y = self.layer(x)"))
    row = error_codes().codes[code]
    assert (found.code, found.means) == (code, f"{row.name}: {row.means}")
    assert found.fixes
    assert all(found.fixes)
    assert row.at.startswith("include/external/acl/")
    assert found.among == error_codes().rules_of(code) or code in (107000, 207000) or found.rule is not None


def test_a_code_that_no_list_has_is_shown_with_its_line_and_is_of_another_cann() -> None:
    (found,) = errors(traceback(107099, "y = self.layer(x)"))
    assert (found.code, found.means, found.rule, found.among, found.standing) == (107099, None, None, (), "unknown")
    assert (found.source, found.line) == ("model.py:31 in forward: y = self.layer(x)", 11)
    assert found.remark == f"no public list of {error_codes().version} has this code: another CANN wrote the log"
    both = errors(failed("aclA failed, error code is 107099, aclB failed, error code is 107024"))
    assert [one.code for one in both] == [107099, 107024]


def test_other_words_for_a_known_code_are_of_another_cann() -> None:
    (found,) = errors(plog(107030, "rtMemcpy:ErrCode=107030, desc=[the current capture mode does not support it]"))
    assert found.remark == f"{error_codes().version} says this code in other words: another CANN wrote the log"


def test_a_log_in_torch_npus_own_form_with_two_codes_is_read() -> None:
    text = traceback(107024, "loaded.wait()") + traceback(107041, "step.to(x.device, non_blocking=True)")
    assert [(one.code, one.rule) for one in errors(text)] == [(107024, "border_event"), (107041, "outside_pageable")]


@pytest.mark.parametrize(
    "rule",
    [
        "unmatched_end",
        "generator_seed",
        "generator_state",
        "task_queue",
        "graph_order",
        "external_event",
        "host_tensor",
    ],
)
def test_torch_npus_own_sentences_are_read(rule: str) -> None:
    said = rules().of(rule).raises
    text = traceback(107029, "y = f(x)").replace(
        "NPU function error: c10_npu::acl::AclCall(stream), error code is 107029", said or ""
    )
    (found,) = errors(text)
    assert (found.code, found.rule, found.standing) == (None, rule, "proven")
    assert found.source == "model.py:31 in forward: y = f(x)"


@pytest.mark.parametrize(
    ("code", "line", "rule"),
    [
        (107027, "if mask.any():", "host_read"),
        (107027, "rows = torch.nonzero(mask)", "data_shape"),
        (107027, "x = x[x > 0]", "data_shape"),
        (107027, "torch.npu.synchronize()", "synchronise"),
        (107027, "y = torch.cond(p, f, g, (x,))", "conditional"),
        (107027, "graph.replay()", "nested_replay"),
        (107027, "torch.npu.graph_task_update_begin(stream, handle)", "task_update"),
        (107027, "mask = mask.cpu()", "sync_copy"),
        (107030, "n = counter.item()", "outside_copy"),
        (107030, "lens = torch.tensor(sizes, device=x.device)", "sync_copy"),
    ],
)
def test_of_several_rules_the_models_line_chooses(code: int, line: str, rule: str) -> None:
    (found,) = errors(traceback(code, line))
    assert (found.rule, found.standing) == (rule, "derived")


def test_what_no_line_decides_keeps_every_rule() -> None:
    (found,) = errors(traceback(107027, "y = self.helper(x)"))
    assert (found.rule, found.standing, found.source) == (None, "unknown", "model.py:31 in forward: y = self.helper(x)")
    assert len(found.among) == len(found.forbids) > 3


OF_A_THREAD = "Exception in thread Thread-14 (_update):\nTraceback (most recent call last):\nKeyError: 'x'\n"


def test_another_threads_copy_and_a_communicators_stream_are_seen_in_the_log() -> None:
    thread = "Exception in thread Thread-14 (_update):\n" + traceback(107030, "update(self.bias)")
    assert [found.rule for found in errors(thread)] == ["other_thread"]
    chained = "During handling of the above exception, another exception occurred:\n\n"
    both = OF_A_THREAD + chained + traceback(107030, "update(self.bias)")
    assert [found.rule for found in errors(both)] == ["other_thread"]
    (joined,) = errors("frame #12: /usr/lib/libhccl.so\n" + plog(107025, SAID[107025]))
    assert (joined.rule, joined.standing) == ("unjoined_collective", "derived")


def test_an_error_after_another_threads_is_not_that_threads() -> None:
    (found,) = errors(OF_A_THREAD + traceback(107030, "update(self.bias)"))
    assert found.rule != "other_thread"
    assert errors(traceback(107030, "update(self.bias)")) == (attrs.evolve(found, line=found.line - 3),)


def test_lines_of_a_server_are_read_by_process_and_counted_together() -> None:
    other = WORKER.replace("4367", "4368").replace("TP1", "TP2")
    mixed = zip(
        traceback(107030, "x.cpu()", WORKER).splitlines(), traceback(107030, "x.cpu()", other).splitlines(), strict=True
    )
    text = "".join(f"{one}\n" for pair in mixed for one in pair)
    (found,) = errors(text)
    assert (found.source, found.times) == ("model.py:31 in forward: x.cpu()", 2)
    assert without_prefix(f"{WORKER}  File") == "  File"


def test_what_comes_after_a_first_error_of_a_process_is_named_its_consequence() -> None:
    text = plog(107025, SAID[107025]) + plog(107029, SAID[107029])
    first, then = errors(text)
    assert (first.after, then.after) == (None, 107025)


def test_an_error_that_comes_before_the_runtime_has_no_code() -> None:
    said = "RuntimeError: Not support Generator while in capture mode during NPU graph capture."
    (found,) = errors(traceback(107029, "torch.rand(4, generator=g)").replace(f"error code is {107029}", "") + said)
    assert (found.code, found.rule, found.standing) == (None, "generator_unknown", "proven")


def test_a_code_without_a_rule_of_a_capture_is_read_and_other_texts_are_not() -> None:
    (found,) = errors(plog(507011, said_by(507011, "rtStreamSynchronize")))
    assert (found.rule, found.among, found.standing, found.forbids) == (None, (), "proven", ())
    assert "before this line" in found.fixes[0]
    assert errors(failed("nothing went wrong").replace("ERROR", "INFO")) == ()
    assert runtime_logs.read("error code is lost\nexit status 107027\n", "a.log") is None


CAPTURED = "Not allow to synchronize captured-stream, device_id=0, stream_id=2."


@pytest.mark.parametrize(("line", "code", "said"), [
    (f"[ERROR] RUNTIME(1,4):x [context.cc:1233]1 {CAPTURED}", 107027, "Not allow to synchronize captured-stream"),
    (f"EE9999[PID: 42] 2026-06-22-10:11:57.444.271 (EE9999):  {CAPTURED}[FUNC:x]", 107027, "Not allow to synchronize"),
    ("RuntimeError: ACL stream synchronize failed, error code:507057", 507057, "ACL stream synchronize"),
    (f"{WORKER}RuntimeError: ACL stream synchronize failed, error code:507015", 507015, "ACL stream synchronize"),
    ("[W723 10:35:58 compiler_depend.ts:526] Warning: NPU warning, error code is 507034[Error]:", 507034, ""),
    ("[ERROR] RUNTIME(1,4):x [npu_driver.cc:7]1 memory allocation failed, ret=207001", 207001, ""),
    ("[ERROR] RUNTIME(1,4):x [stream.cc:7]1 task timeout, retCode:107020, stream_id=3", 107020, ""),
    ("[ERROR] ASCENDCL(1,4):x [a.cpp:7]1 call failed, result is 507911", 507911, ""),
    ("[ERROR] RUNTIME(1,4):x [a.cc:7]1 the ring is full", None, "the ring is full"),
    ("EI0004[PID: 7] 2026-06-22-10:11:57 (EI0004): the rank table is not valid", None, "the rank table is not valid"),
])  # fmt: skip
def test_a_form_or_a_code_that_is_not_known_is_shown_with_its_line(line: str, code: int | None, said: str) -> None:
    (found,) = errors(f"INFO starting, result 0\n{line}\n")
    assert (found.code, found.line) == (code, 2)
    assert found.said.startswith(said)
    if code is None:
        assert (found.standing, found.means, found.rule) == ("unknown", None, None)
        assert found.remark == "the line names no code, and no other line of its process does: it is shown as it stands"


def test_the_first_error_of_a_process_is_never_skipped() -> None:
    text = (
        failed("memory allocation failed, ret=207001") + failed("task timeout, retCode=107020")
        + failed("aclA failed, error code is 107027")
    )  # fmt: skip
    assert [(one.code, one.line, one.after) for one in errors(text)] == [
        (207001, 1, None), (107020, 2, 207001), (107027, 3, 207001)]  # fmt: skip


def test_a_log_of_too_many_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_logs, "MOST_PROCESSES", 3)
    text = "".join(failed("aclA failed, error code is 107027", process) for process in range(1, 9))
    with pytest.raises(ConfigError, match="line 5: the log has errors of more than 3 processes"):
        errors(text)


def test_of_a_deep_traceback_the_innermost_frames_are_kept() -> None:
    deep = '  File "/srv/app/a.py", line 1, in f\n    f()\n' * 3_000
    (found,) = errors(
        traceback(107027, "y = f(x)").replace('  File "/srv/app/run.py"', f'{deep}  File "/srv/app/run.py"')
    )
    assert found.source == "model.py:31 in forward: y = f(x)"


@pytest.mark.parametrize("text", ["all is well, status 200000\n", "it returns 107027\n", "result = 107027\n"])
def test_a_number_that_is_no_error_makes_no_log(text: str) -> None:
    assert runtime_logs.read(text, "a.log") is None


def failed(said: str, process: int = 1) -> str:
    return f"[ERROR] RUNTIME({process},4):2026-07-11-15:11:05.293.967 [api_c.cc:1081]{process} {said}\n"


def called(call: str, said: str = "it failed", code: int = 107030) -> str:
    """What failed so, where the model's line says nothing of it."""
    return traceback(code, "y = self.layer(x)").replace(
        f"NPU function error: c10_npu::acl::AclCall(stream), error code is {code}",
        f"{call}:{said}, runtime result = {code}",
    )


LOGS = {
    "one code in two lines, words of the runtime first": plog(107030, SAID[107030]),
    "a call alone": failed("c10::NPU function error: call c10_npu::aclrtMemcpy, error code: 107030"),
    "words alone": failed("synchronized memcpy failed, kind = 1, runtime result = 107030"),
    "three calls, and a reason": failed("[SET] execution failed, reason= not supported ")
    + "".join(failed(f"{call} failed, error code is 107027") for call in ("aclB", "aclA", "aclB")),
    "a reason of another process": failed("execution failed, reason=of another", 2)
    + failed("aclA failed, error code is 107027"),
    "two codes of one process, and one of another": failed("aclA failed, error code is 107029")
    + failed("aclB failed, error code is 107027", 2)
    + failed("aclC failed, error code is 107027")
    + failed("aclD failed, error code is 107029"),
    "one line of the model in two processes": traceback(107030, "x.cpu()", WORKER)
    + traceback(107030, "x.cpu()", WORKER.replace("4367", "4368")),
    "two lines of the model, and one error that has none": failed("aclA failed, error code is 107030")
    + traceback(107030, "x.cpu()", WORKER)
    + traceback(107030, "y.cpu()", WORKER.replace("4367", "4368")),
    "an error without a line below one with": traceback(107030, "x.cpu()", WORKER)
    + failed("aclA failed, error code is 107030"),
    "an asynchronous copy": called("rtMemcpyAsync"),
    "an asynchronous copy, in words": called("call", "async memcpy of pages"),
    "a copy that may be either": called("rtMemcpy"),
    "a copy in other words": called("call", "MemCopy of pages"),
    "no copy": called("rtOther"),
    "a capture in a capture": called("rtStreamBeginCapture", code=107032),
    "a wait for an event": traceback(107032, "y = f(x)").replace("AclCall", "AclrtWaitEvent"),
    "a collective of the same process": failed("HcclAllReduce ran", 7) + failed("aclA failed, error code is 107025", 7),
    "a collective of another process": failed("HcclAllReduce ran", 8) + failed("aclA failed, error code is 107025", 7),
    "a collective after the error": failed("aclA failed, error code is 107025") + failed("hcom_all_reduce_ ended"),
    "several codes in one line": failed("aclA failed, error code is 107025, aclB failed, error code is 107027"),
    "an unknown code before a known one": failed("aclA failed, error code is 5, aclB failed, error code is 107027"),
    "a code up to the end of what is searched": f"{' aclA failed, error code is 107025':x>4000}\n",
    "a code beyond it": f"{' aclA failed, error code is 107025':x>4001}\n" + failed("nothing"),
}  # fmt: skip


def test_errors_in_logs_are_read_like_this(golden: Callable[[str, str], None]) -> None:
    def page(about: str, text: str) -> str:
        found = [
            {name: value for name, value in facts_of(error).items() if name not in ("forbids", "fixes", "threads")}
            for error in errors(text)
        ]
        return f"# {about}\n{yaml.safe_dump(found, sort_keys=False, width=110)}"

    golden("device_files/runtime_errors.txt", "\n".join(page(about, text) for about, text in LOGS.items()))


@pytest.mark.parametrize(
    ("source", "spelled"),
    [
        ("VA #6002: x VA", "vllm-project/vllm-ascend #6002: x VA"),
        ("RT: rules", "hicann/runtime: rules"),
        ("TN aten/x.cpp:1", "Ascend/pytorch aten/x.cpp:1"),
        ("CANN 8.5", "hiascend.com, CANN 8.5"),
        ("VAT RT", "VAT RT"),
    ],
)
def test_the_short_names_of_sources_are_written_out_where_they_begin(source: str, spelled: str) -> None:
    assert runtime_logs._spelled(source) == spelled


def test_one_log_may_hold_ges_verdict_and_the_runtimes_error(tmp_path: Path) -> None:
    verdict = (
        "[INFO] TORCHAIR(1,python):x [c.cpp:246]1 Static FX graph compiled to static Ascend GE graph, graph id: 0\n"
    )
    (tmp_path / "both.log").write_text(verdict + plog(107031, SAID[107031]))
    found = FileFacts.from_read(read(tmp_path / "both.log"))
    assert (found.sinking.ge_build, [error.code for error in found.errors]) == ("static", [107031])


def test_a_long_line_takes_no_time(tmp_path: Path) -> None:
    text = (
        "[ERROR] RUNTIME(1,):" + "a" * 3_000_000 + ", runtime result = 107030\n" + "(" * 200_000 + "\n" + "w" * 500_000
    )
    assert errors(text) == ()


def test_explain_prints_code_rule_line_fix_and_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "worker.log").write_text(traceback(107027, "n = lengths.max().item()", WORKER))
    assert main(["explain", "--log", str(tmp_path / "worker.log")]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "107027 host_read · derived" in page
    assert "model.py:31 in forward: n = lengths.max().item()" in page
    assert "forbidden: the host reads a value" in page
    assert "-> keep the value on the device" in page
    assert "vllm-project/vllm-ascend #16736" in page
    assert "FX graph" not in page
    assert main(["explain", "--json", "--log", str(tmp_path / "worker.log")]) == 0
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["code"], error["rule"], error["line"]) == (107027, "host_read", 11)


def page(error: CaptureError) -> str:
    console = Console(file=io.StringIO(), width=200)
    artefacts.render((error,), (), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_an_error_of_many_causes_is_shown_with_the_first_that_its_call_fits() -> None:
    (error,) = errors(traceback(107027, "y = self.layer(x)").replace("AclCall", "AclrtSynchronizeStream"))
    assert error.fitting == ("host_read", "data_shape", "data_memory", "synchronise", "conditional")
    assert error.among[: len(error.fitting)] == error.fitting
    words = page(error)
    assert "one of 10 rules, host_read first · unknown" in words
    assert words.count("->") == 1
    assert words.count("forbidden:") == 1
    assert "the call may be of data_shape, data_memory, synchronise, conditional as well" in words
    assert "less likely: sync_copy, cpu_kernel, nested_capture, nested_replay, task_update" in words


def test_a_call_that_fits_no_rule_leaves_the_order_of_the_table() -> None:
    (error,) = errors(traceback(107027, "y = self.layer(x)"))
    assert error.fitting == ()
    assert error.among == error_codes().rules_of(107027)
    assert "or: data_shape" in page(error)


def test_two_causes_are_shown_whole() -> None:
    (error,) = errors(traceback(107025, "y = self.layer(x)"))
    assert page(error).count("->") == len(error.fixes) == 2
