"""Captured graphs as torch_npu's debug_dump writes them: streams, events, kernels, and lines where names allow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.npu.capture import artefacts
from npucompose.npu.capture.tied import tied
from npucompose.results.artefacts import CapturedGraph, CaptureError, FxListing
from npucompose.table.structure import facts_of
from npucompose_devtools.device_files import captured_graphs, fx_listings

LISTING = """class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "f16[4, 4]", arg1_1: "f16[4]"):
        # File: /srv/app/model.py:12 in forward, code: y = x @ self.w
        mm: "f16[4, 4]" = torch.ops.aten.mm.default(arg0_1, arg0_1)

        # File: /srv/app/model.py:13 in forward, code: return F.linear(y, self.v, self.b)
        t: "f16[4, 4]" = torch.ops.aten.t.default(mm);  mm = None
        addmm: "bf16[4, 4]" = torch.ops.aten.addmm.default(arg1_1, arg0_1, t);  t = None

        # No stacktrace found for following nodes
        add = torch.ops.aten.add.Tensor(addmm, 1)
        return (add,)
"""


def task(name: str, kind: str, stream: int, number: int, **more: Any) -> dict[str, Any]:
    args = {"Model Id": 3, "Stream Id": stream, "Task Id": number, "Task Type": kind, **more}
    where = {"pid": "71 aclGraph", "tid": f"stream{stream}", "ts": 10 * number, "dur": 8, "ph": "X"}
    return {"name": name, **where, "args": args}


def dumped(*tasks: dict[str, Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(one) for one in tasks) + "\n]"


TWO_STREAMS = dumped(
    task("MatMulV3_5f2e_mix_aic", "KERNEL_AICORE", 7, 0, Numblocks=24),
    task("EVENT_RECORD_12", "EVENT_RECORD", 7, 1),
    task("MatMulV3_5f2e_mix_aic", "KERNEL_MIX_AIC", 7, 2, Numblocks=24),
    task("EVENT_WAIT_13", "EVENT_WAIT", 7, 3),
    task("EVENT_WAIT_12", "EVENT_WAIT", 9, 0),
    task("Add_77aa_high_performance", "KERNEL_AIVEC", 9, 1, Numblocks=48),
    task("EVENT_RECORD_13", "EVENT_RECORD", 9, 2),
)


def graph(text: str) -> CapturedGraph:
    found = captured_graphs.read(text, "dump.json")
    assert found is not None
    return found.captured[0]


def listing() -> FxListing:
    found = fx_listings.read(LISTING, "graph.txt")
    assert found is not None
    return found.listings[0]


def test_streams_events_and_kernels_are_read() -> None:
    found = graph(TWO_STREAMS)
    assert (found.model, found.tasks, [(one.stream, one.tasks) for one in found.streams]) == (3, 7, [(7, 4), (9, 3)])
    assert found.streams[0].kinds == {"KERNEL_AICORE": 1, "EVENT_RECORD": 1, "KERNEL_MIX_AIC": 1, "EVENT_WAIT": 1}
    assert [(one.event, one.recorded, one.waited) for one in found.events] == [("12", (7,), (9,)), ("13", (9,), (7,))]
    kernels = [(one.stream, one.task, one.operator, one.computes, one.blocks) for one in found.kernels]
    assert kernels == [(7, 0, "MatMulV3", "mm", 24), (7, 2, "MatMulV3", "mm", 24), (9, 1, "Add", "add", 48)]
    assert found.remarks == ()


def test_what_crosses_the_border_is_never_waited_for_or_runs_on_is_remarked() -> None:
    found = graph(
        dumped(
            task("Add_1", "KERNEL_AIVEC", 1, 0),
            task("STREAM_ACTIVE", "STREAM_ACTIVE", 1, 1, **{"Active Stream Id": 2}),
            task("MEM_WAIT_VALUE_140000", "MEM_WAIT_VALUE", 2, 0),
            task("EVENT_RECORD_5", "EVENT_RECORD", 2, 1),
            task("Mul_1", "KERNEL_AIVEC", 3, 0),
        )
    )
    assert [one.continues for one in found.streams] == [2, None, None]
    cascade, outside, unused, loose = found.remarks
    assert "1 -> 2" in cascade
    assert "140000" in outside
    assert unused.endswith(": 5")
    assert loose == "2 streams record no event and wait for none: 1, 3"


def test_the_runtimes_last_comma_and_the_arrows_of_the_aligned_file_do_no_harm() -> None:
    comma = TWO_STREAMS.replace("\n]", ",\n]")
    arrow = json.dumps({"name": "flow", "ph": "s", "id": 1, "pid": "71 aclGraph", "tid": "stream7", "ts": 3})
    assert graph(comma) == graph(TWO_STREAMS) == graph(TWO_STREAMS.replace("\n]", f",\n{arrow}\n]"))


def test_a_listing_has_nodes_with_operator_dtype_and_line() -> None:
    nodes = [(one.name, one.operator, one.dtype, one.source) for one in listing().nodes]
    assert nodes == [
        ("mm", "aten.mm.default", "float16", "model.py:12 in forward: y = x @ self.w"),
        ("t", "aten.t.default", "float16", "model.py:13 in forward: return F.linear(y, self.v, self.b)"),
        ("addmm", "aten.addmm.default", "bfloat16", "model.py:13 in forward: return F.linear(y, self.v, self.b)"),
        ("add", "aten.add.Tensor", None, None),
    ]


def test_kernels_in_one_queue_that_are_as_many_as_nodes_get_their_lines() -> None:
    found = tied(graph(TWO_STREAMS), (listing(),)).kernels
    assert [(one.node, one.source and one.source.partition(":")[0]) for one in found] == [
        ("mm", "model.py"), ("addmm", "model.py"), ("add", None),
    ]  # fmt: skip


def test_kernels_on_two_streams_or_more_than_there_are_nodes_get_none() -> None:
    apart = TWO_STREAMS.replace('"KERNEL_MIX_AIC"', '"KERNEL_MIX_AIC"', 1)
    moved = dumped(*(dict(one, args=dict(one["args"], **{"Stream Id": 9})) if one["args"]["Task Id"] == 2
                     and one["args"]["Stream Id"] == 7 else one for one in json.loads(apart)))  # fmt: skip
    assert [one.node for one in tied(graph(moved), (listing(),)).kernels if one.operator == "MatMulV3"] == [None, None]
    third = TWO_STREAMS.replace("\n]", f",\n{json.dumps(task('MatMulV3_5f2e', 'KERNEL_AICORE', 7, 9))}\n]")
    assert {one.node for one in tied(graph(third), (listing(),)).kernels if one.operator == "MatMulV3"} == {None}


def test_a_queue_that_goes_on_in_another_stream_is_one_queue() -> None:
    tasks = json.loads(TWO_STREAMS)
    tasks[2]["args"]["Stream Id"] = 8
    tasks.insert(2, task("STREAM_ACTIVE", "STREAM_ACTIVE", 7, 2, **{"Active Stream Id": 8}))
    found = tied(graph(dumped(*tasks)), (listing(),)).kernels
    assert [one.node for one in found if one.operator == "MatMulV3"] == ["mm", "addmm"]


def test_a_captured_graph_is_read_like_this(golden: Callable[[str, str], None]) -> None:
    """A device's own kernels and the host's, events by each way to signal, and streams that ran full."""
    tasks = [
        task("MatMulV3_5f2e_mix_aic", "KERNEL_AICORE", 7, 0, Numblocks=24),
        task("Novel_kernel", "FFTS_PLUS", 7, 1, Numblocks=True),
        task("Cast_1", "AICPU_KERNEL", 7, 2, Numblocks="24"),
        task("copy", "MEMCPY_ASYNC", 7, 3),
        task("not_a_KERNEL_", "HOST_KERNEL_AICORE", 7, 4),
        task("EVENT_RECORD_12", "EVENT_RECORD", 7, 5),
        task("EVENT_RECORD_12", "EVENT_RECORD", 9, 0),
        task("EVENT_WAIT_12", "EVENT_WAIT", 9, 1),
        task("EVENT_WAIT_12", "EVENT_WAIT", 9, 2),
        task("NOTIFY_RECORD_4", "NOTIFY_RECORD", 9, 3),
        task("NOTIFY_WAIT_4", "NOTIFY_WAIT", 7, 6),
        task("MEM_WRITE_VALUE_ADDR_140", "MEM_WRITE_VALUE", 7, 7),
        task("MEM_WAIT_VALUE_EQ_140", "MEM_WAIT_VALUE", 9, 4),
        task("EVENT_WAIT_99", "EVENT_WAIT", 9, 5),
        task("EVENT_RECORD_88", "EVENT_RECORD", 9, 6),
        task("STREAM_ACTIVE", "STREAM_ACTIVE", 9, 7, **{"Active Stream Id": 10}),
        task("STREAM_ACTIVE", "STREAM_ACTIVE", 9, 8, **{"Active Stream Id": 11}),
        task("Add_1", "KERNEL_AIVEC", 10, 0),
        task("Add_2", "KERNEL_AIVEC", 12, 0, **{"Model Id": 5}),
    ]
    many = [task("EVENT_WAIT_1", "EVENT_WAIT", 1, 0)]
    many += [task(f"Add_{at}", "KERNEL_AIVEC", at, 0) for at in range(2, 15)]
    many += [task("STREAM_ACTIVE", "STREAM_ACTIVE", at, 1, **{"Active Stream Id": at + 100}) for at in range(2, 14)]
    alone = [task("Add_1", "KERNEL_AIVEC", 1, 0, **{"Model Id": None})]
    pages = {"each kind of task": tasks, "many streams": many, "one stream": alone}
    golden(
        "device_files/captured.txt",
        "\n".join(
            f"# {about}\n{yaml.safe_dump(facts_of(graph(dumped(*its))), sort_keys=False)}"
            for about, its in pages.items()
        ),
    )


def test_errors_and_captured_graphs_are_printed_like_this(golden: Callable[[str, str], None]) -> None:
    def error(number: int, **more: Any) -> CaptureError:
        parts = {"code": 107030, "said": "call: words", "rule": "sync_copy", "among": ("sync_copy",)}
        parts |= {"forbids": ("a copy",), "fixes": ("copy earlier", "or not"), "threads": ("a #1", "b #2")}
        return CaptureError(**{**parts, "line": number, "times": 1, "standing": "proven", **more})

    several = error(
        7, rule=None, among=("a", "b"), said="", standing="unknown", times=3, source="m.py:1 in f: x", after=5
    )
    lines = [task(f"Add_{at}", "KERNEL_AIVEC", at, 0) for at in range(21)]
    lines += [task(f"EVENT_RECORD_{at}", "EVENT_RECORD", at, 1) for at in range(21)]
    lines += [task(f"EVENT_WAIT_{at}", "EVENT_WAIT", (at + 1) % 21, 2) for at in range(21)]
    many = graph(dumped(*lines))
    named = evolve(many, kernels=tuple(evolve(one, node=f"n{one.stream}", source=None) for one in many.kernels))
    lined = tied(graph(TWO_STREAMS), (listing(),))
    unnumbered = graph(dumped(task("Add_1", "KERNEL_AIVEC", 1, 0, **{"Model Id": None})))
    pages: list[tuple[Sequence[CaptureError], Sequence[CapturedGraph]]] = [
        ((error(1), several, error(9, code=None)), ()),
        ([error(number) for number in range(21)], ()),
        ([error(number) for number in range(20)], ()),
        ((error(1), error(2, code=107027)), (lined, unnumbered)),
        ((), (many,)),
        ((), (named,)),
        ((), ()),
    ]
    told: list[str] = []
    for errors, graphs in pages:
        console = Console(file=io.StringIO(), width=110, force_terminal=False)
        artefacts.render(errors, graphs, console)
        assert isinstance(console.file, io.StringIO)
        printed = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
        told.append(f"# {artefacts.title(errors, graphs)}\n{printed}\n")
    golden("device_files/captured_page.txt", "\n".join(told))


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ('mm: "f32[4]" = torch.ops.aten.mm.default(a, b)', ("mm", "aten.mm.default", "float32")),
        ("mm_1 : 'i64[4]' = torch.ops.aten.mm.default(a)", ("mm_1", "aten.mm.default", "int64")),
        ('mm: "b8[]" = aten.mm.default(a)', ("mm", "aten.mm.default", "bool")),
        ('mm: "Sym(s0)" = torch.ops.aten.sym_size.int(a, 0)', None),
        ("mm: torch.Tensor = operator.getitem(a, 0)", ("mm", "operator.getitem", None)),
        ('mm: "e4[4]" = torch.ops.x.y(a)', ("mm", "x.y", None)),
        ("return (mm,)", None),
        ("a, b = f(c)", None),
    ],
)
def test_a_line_of_a_listing_is_a_node_or_none(line: str, node: tuple[str, str, str | None] | None) -> None:
    found = fx_listings.read(f"class G(torch.nn.Module):\n    def forward(self):\n        {line}\n", "g.txt")
    assert found is not None
    nodes = [(one.name, one.operator, one.dtype) for one in found.listings[0].nodes]
    assert nodes == ([node] if node else [])


@pytest.mark.parametrize(
    ("short", "name"),
    [("f64", "float64"), ("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"), ("i64", "int64"),
     ("i32", "int32"), ("i16", "int16"), ("i8", "int8"), ("u8", "uint8"), ("b8", "bool"), ("c64", "complex64"),
     ("c128", "complex128")],
)  # fmt: skip
def test_torchs_short_names_are_those_of_its_dtypes(short: str, name: str) -> None:
    from torch.utils._dtype_abbrs import dtype_abbrs

    text = f'class G(torch.nn.Module):\n    x: "{short}[4]" = torch.ops.aten.abs.default(y)\n'
    found = fx_listings.read(text, "g.txt")
    assert found is not None
    assert found.listings[0].nodes[0].dtype == name
    assert dtype_abbrs[getattr(torch, name)] == short


def test_explain_draws_the_graph_and_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph.json").write_text(TWO_STREAMS)
    (tmp_path / "graph.txt").write_text(LISTING)
    files = ["--dump", str(tmp_path / "graph.json"), "--dump", str(tmp_path / "graph.txt")]
    assert main(["explain", *files]) == 0
    page = capsys.readouterr().out
    assert "7 tasks on 2 streams" in page
    assert "stream 7 -> stream 9" in page
    assert "MatMulV3: mm, model.py:12 in forward: y = x @ self.w" in page
    assert main(["explain", "--json", *files]) == 0
    (found,) = json.loads(capsys.readouterr().out)["captured"]
    assert [kernel["node"] for kernel in found["kernels"]] == ["mm", "addmm", "add"]


def test_a_listing_alone_says_nothing_of_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph.txt").write_text(LISTING)
    assert main(["explain", "--dump", str(tmp_path / "graph.txt")]) == 2
    assert "give the captured graph (debug_dump's JSON) beside it" in capsys.readouterr().err


numbers = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3), st.none(), st.booleans(), st.floats())


numbered = st.fixed_dictionaries(dict.fromkeys(("Stream Id", "Task Id", "Task Type", "Numblocks"), numbers))


@given(st.lists(numbered, min_size=1, max_size=4))
def test_any_numbers_are_read_or_refused(tasks: list[dict[str, Any]]) -> None:
    text = json.dumps([{"name": "Add_1", "args": args} for args in tasks])
    try:
        found = captured_graphs.read(text, "dump.json")
    except ConfigError:
        return
    assert found is None or found.captured[0].tasks == len(tasks)
