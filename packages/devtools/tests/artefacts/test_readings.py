"""Everything that is read from a file, and everything that is concluded from it, as golden texts.

The samples are whole files; what is made here has one odd thing each. Field names are those of attrs classes: a text
shows the artefact, then its verdicts, then who is to blame and the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from npucompose.errors import ConfigError
from npucompose_devtools.artefacts import EVERY_FORM, Artefact, read
from npucompose_devtools.artefacts.artefact import Compiled
from npucompose_devtools.artefacts.text import LIMIT_BYTES, NotProtobuf, attributes, parsed, text
from tests.sinking.made import plain, told

HERE = Path(__file__).parent
SAMPLES = sorted(path for folder in ("samples", "genuine") for path in (HERE / folder).iterdir())

CPP = "[INFO] TORCHAIR(1,python):2026-01-05 [concrete_graph.cpp:1]1 "
GE = "[INFO] GE(1,python):2026-01-05 [dynamic_shape_partition.cc:1]1 "
TORCH = "V0105 10:00:06 1 torch/_dynamo/guards.py:1] "


def lines(*rest: str) -> str:
    return "\n".join(rest) + "\n"


def recompiling(compile_id: str, function: str, *reasons: str) -> list[str]:
    head = f"{TORCH}[{compile_id}] [__recompiles] "
    return [f"{head}Recompiling function {function} in model.py:2", *(f"{head}    - {reason}" for reason in reasons)]


def operator(name: str, type: str, *shape: int, more: str = "") -> str:
    sizes = " ".join(f"dim: {size}" for size in shape)
    return f'op {{ name: "{name}" type: "{type}" output_desc {{ shape {{ {sizes} }} }} {more} }}'


def flag(key: str, value: str = "true") -> str:
    return f'attr {{ key: "{key}" value {{ b: {value} }} }}'


def graph(name: str, *inside: str) -> str:
    return f'graph {{ name: "{name}" {" ".join(inside)} }}\n'


MADE: dict[str, str] = {
    "options_end_with_a_verdict.log": lines(
        f"{CPP}    ge.early = 0",
        f"{CPP}Compiling concrete graph 3 with options:",
        f"{CPP}    ge.first = 1 ",
        "[INFO] GE(1,python) [a.cc:1]1     ge.of_another = 2",
        f"{CPP}Compiling concrete graph 4 with options:",
        f"{CPP}    ge.second = a = b",
        f"{CPP}Static FX graph compiled to static Ascend GE graph, graph id: 4",
        f"{CPP}    ge.late = 5",
        f"{CPP}Dynamic FX graph compiled to static Ascend GE graph, graph id: 3",
    ),
    "verdicts_of_nine_graphs.log": lines(
        *(f"{CPP}Dynamic FX graph compiled to dynamic Ascend GE graph, graph id: {n}" for n in range(9)),
    ),
    "verdicts_of_eight_graphs.log": lines(
        *(f"{CPP}Static FX graph compiled to static Ascend GE graph, graph id: {n}" for n in range(8)),
    ),
    "inputs_of_no_graph.log": lines(
        f"{CPP}  input 0: s0",
        f"{CPP}compiler inputs",
        f"{CPP}compiler inputs",
        "[INFO] GE(1,python) [a.cc:1]1   input 0: s1",
        f"{CPP}  input 0: FakeTensor(..., size=())",
        f"{CPP}  input 1: FakeTensor(..., device='npu:0', size=(u0, 8))",
        f"{CPP}  input 2: 7",
        f"{CPP}  input 3: FakeTensor(..., size=(s1,))",
        f"{CPP}  input 4: FakeTensor(..., size=(s1 , ))",
    ),
    "static_inputs_only.log": lines(f"{CPP} compiler inputs", f"{CPP}  input 0: FakeTensor(..., size=(4, 8))"),
    "plog_slots_and_repeats.log": lines(
        f"{GE}Input[5] of node: attention is dynamic tilingDependent, index: 5",
        f"{GE}Input[7] of node: attention is dynamic tilingDependent, index: 7",
        f"{GE}Input[5] of node: attention is dynamic tilingDependent, index: 5",
        f"{GE}Mark node[attention,IncreFlashAttention] force unknown as dynamic tilingDependent",
        f"{GE}Mark node[attention,IncreFlashAttention] force unknown as it does not support address refresh",
        f"{GE}node plain was marked as force unknown shape.",
        f"{GE}Collect node other as unknown as it was marked unknown forcibly",
        f"{GE}Skip dynamic shape partition of graph a as all nodes are known shape.",
        f"{GE}Skip dynamic shape partition of graph a as all nodes are known shape.",
        f"{GE}Skip dynamic shape partition of graph b as all nodes are known shape.",
    ),
    "recompiles_of_two_functions.log": lines(
        f"{TORCH}[0/9] [__recompiles]     - 0/8: lens[0] == 1",
        *recompiling("0/1", "forward", "0/0: tensor 'x' size mismatch at index 1. expected 4, actual 6"),
        *recompiling("1/1", "step", "1/0: scale == 0.5", "1/0: lens[1] == 7"),
        *recompiling("2/1", "told_nothing"),
        *recompiling("3/1", "strange", "3/0: y.size()[0] == x.size()[1]  # duck sizing added this equality"),
        *recompiling("3/2", "again", "3/1: flag == True"),
    ),
    "plog_sunk_only.log": lines(
        f"{GE}Input[1] of node: attention is dynamic tilingDependent, index: 1",
        f"{GE}Node: attention is tilingDependent support tiling sink",
    ),
    "one_of_many_words.log": lines("[__recompiles] nothing", "[WARNING] GE(1) [a.cc:1]1 neither"),
    "ge_proto_00000001_graph_1_PreRunAfterBuild.txt": lines(
        graph("g", operator("x", "Data", 4), operator("y", "RefData", 4, 8), flag("_graph_unknown_flag")),
        graph("static_one", operator("z", "Data", 4), flag("_graph_unknown_flag", "false")),
    ),
    "ge_proto_00000002_graph_1_Build.txt": lines(
        graph("root", operator("x", "Data", 2), operator("call", "PartitionedCall", 2)),
        graph("root_sub_0_unknow", operator("mm", "MatMul", -1, 8)),
        graph("root_sub_1_unknow", operator("abs", "Abs", 8, -1), operator("neg", "Neg", 2)),
    ),
    "ge_proto_00000003_graph_1_OptimizeStage1.txt": lines(
        graph("between", operator("x", "Data", 2), operator("mm", "MatMul", 2)),
    ),
    "ge_proto_00000004_graph_1_PreRunBegin.txt": lines(
        operator("x", "Data", 3, -1, -1, more="output_desc { shape { dim: 7 } }"),
        operator("empty", "Abs", 0),
        operator("sized", "MatMul", 2, -1, more=flag("_is_unknown_shape")),
        operator("moved", "HcomAllGather", 2, more=flag("_is_support_addr_refresh", "false")),
        operator("fine", "HcomAllReduce", 2, more=flag("_is_support_addr_refresh")),
        operator("forced", "Abs", 2, more=flag("_force_unknown_shape")),
        operator("tiled", "FusedInferAttentionScore", 2,
                 more=f'{flag("_force_unknown_shape")} {flag("_dynamic_tiling_depend_op")}'),
        operator("both", "Neg", 2, more=f'{flag("_tiling_sink_op")} {flag("_is_unknown_shape")}'),
        operator("sunk", "IncreFlashAttention", 2, more=flag("_tiling_sink_op")),
        operator("unsunk", "IncreFlashAttention", 2, more=flag("_tiling_sink_op", "false")),
    ),
    "ge_proto_00000005_graph_1_only_parts.txt": lines(graph("g_sub_1_know", operator("a", "Abs", 1))),
    "eight_inputs.txt": lines(
        'name: "eight"',
        *(operator(f"x{n}", "Data", -1) for n in range(8)),
        'op { name: "out" type: "NetOutput" }',
    ),
    "nine_inputs.txt": lines(
        'name: "nine"',
        *(operator(f"x{n}", "Data", 2, -2) for n in range(9)),
        'op { name: "out" type: "NetOutput" }',
    ),
    "unshaped_input.txt": 'op { name: "x" type: "Data" }\nop { name: "out" type: "NetOutput" }\n',
    "dynamo_original_graph_1.txt": lines(
        operator("forced", "Abs", 2, more=flag("_force_unknown_shape")), 'op { name: "out" type: "NetOutput" }'
    ),
    "dynamo_optimized_graph_2.pbtxt": lines(
        'node { name: "x" op: "Data" attr { key: "[o]0" value { s: "shape { dim: 2 dim: -1 }" } }'
        ' attr { key: "[i]0" value { s: "shape { dim: 9 }" } } }',
        'node { name: "abs" op: "Abs" attr { key: "_force_unknown_shape" value { s: "b: true" } }'
        ' attr { key: "_tiling_sink_op" value { s: "b: false" } }'
        ' attr { key: "_is_support_addr_refresh" value { s: "i: 0" } } }',
        'node { name: "out" op: "NetOutput" }',
    ),
    "ge_onnx_00000001_graph_1_Build.pbtxt": lines(
        "ir_version: 7",
        'graph { name: "g"',
        '  node { name: "x" op_type: "ge:Data" attribute { name: "output_desc_shape:0" ints: 2 ints: 3 }'
        ' attribute { name: "_force_unknown_shape" i: 0 } attribute { name: "index" i: 1 } }',
        '  node { name: "many" op_type: "ge:SplitD" attribute { name: "output_desc_0" s: "no JSON" }'
        ' attribute { name: "output_desc_1" s: "{\\"shape\\": [4]}" }'
        ' attribute { name: "output_desc_2" s: "{\\"dtype\\": 1}" }'
        ' attribute { name: "output_desc_dtype:0" s: "DT_FLOAT" } }',
        '  node { name: "sub" op_type: "subgraph"'
        ' attribute { g { name: "first" node { name: "a" op_type: "ge:Abs" } } }'
        ' attribute { g { name: "second" node { name: "b" op_type: "ge:Neg" } } } }',
        "}",
    ),
    "producer_only.pbtxt": 'producer_name: "ge"\ngraph { name: "g" node { name: "a" op_type: "ge:Abs" } }\n',
    "listing.py": lines(
        "from torchair.core import ge_apis as ge",
        'a_0 = ge.Data(index=0, shape=[2, -1], node_name="a")',
        'b_0 = ge.Data(index=1, shape="2", node_name=1)',
        "c_0 = ge.Data(index=2, node_name='c')",
        'd_0 = ge.Add(a_0, ge.Const([1.0]), node_name="Add")',
        "e_0 = other.Mul(d_0, torch.ops.aten.abs(1), print(2))",
        "_ = ge.NetOutput(d_0)",
    ),
    "bare_listing.py": 'x_0 = ge.Data(index=0, shape=[2], node_name="x")\n_ = ge.NetOutput(x_0)\n',
    "readable.txt": lines(
        "",
        'graph("first"):',
        "  %x : [#users=1] = Node[type=Data] (attrs = {index: 0})",
        "  %y : [#users=1] = Node[type=Abs] (inputs = (x=%x))",
        "  return (%y)",
        'graph("second"):',
        "  %z : [#users=0] = Node[type=Const] ()",
        "  return ()",
    ),
}  # fmt: skip


def all_of(artefact: Artefact) -> str:
    facts = artefact.sinking
    assert facts.blame == artefact.blame
    assert facts.steps == artefact.steps
    return yaml.safe_dump(plain(artefact), sort_keys=False, allow_unicode=True, width=200) + f"---\n{told(facts)}"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_sample_is_read_and_judged_as_the_golden_text_says(path: Path, golden: Callable[[str, str], None]) -> None:
    golden(f"artefacts/{path.name}.txt", all_of(read(path)))


@pytest.mark.parametrize("name", MADE)
def test_a_made_file_is_read_and_judged_as_the_golden_text_says(
    name: str, golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(MADE[name])
    golden(f"artefacts/{name}.txt", all_of(read(tmp_path / name)))


def refusal(path: Path, content: bytes, **more: int) -> str:
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(path, **more)
    assert str(caught.value).startswith(str(path)) or str(caught.value).startswith(path.name)
    return str(caught.value).removeprefix(f"{path} ").removeprefix(f"{path.name} ")


NOT_OURS = f"is no artefact that is read here. It begins with {{!r}}. What is read: {'; '.join(EVERY_FORM)}."
CUT = "is cut off: {}. Write it again, or copy all of it."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (" \n   hello there  \nmore", NOT_OURS.format("hello there")),
        ('op { name: "x" type: "Data" }', CUT.format("it has no NetOutput, with which TorchAir ends every graph")),
        ("a = ge.Abs(1)", CUT.format("it has no ge.NetOutput, with which TorchAir ends every graph")),
        ("x" * 81, NOT_OURS.format("x" * 80)),
        ("a: 1 }", NOT_OURS.format("a: 1 }")),
        ("name: 1 }", NOT_OURS.format("name: 1 }")),
        ("name: [1 2 }", NOT_OURS.format("name: [1 2 }")),
        ("name { 7 }", NOT_OURS.format("name { 7 }")),
        ("name: ] ", NOT_OURS.format("name: ]")),
        ("name = ]", NOT_OURS.format("name = ]")),
        ("ir_version: 7", NOT_OURS.format("ir_version: 7")),
        ("name:\n1 op {\n op {\n\n", CUT.format("2 blocks are open at its end, line 5")),
        ("name:\n", CUT.format("0 blocks are open at its end, line 2")),
        ('name:\n"abc', CUT.format("a text that begins in line 2 has no end")),
        ('op { output_desc { shape { dim: "x" } } }',
         "looks like a graph dump, but is none: invalid literal for int() with base 10: 'x'."),
        ("a = ge.Abs(1)\nb = ge.Neg(  \n", CUT.format("line 2 is no whole statement: 'b = ge.Neg('")),
        ('graph("g"):\n return (\n', CUT.format('graph("g") has no return')),
        ('graph("g"):\n return (1)\ngraph("h"):\n  )\n', CUT.format('graph("h") has no return')),
        (f"{CPP}FX graph c", CUT.format("its last line, 1, ends inside 'FX graph compiled to static Ascend GE gr…'")),
        (f"{GE}\n{GE}is tilingDependent support tiling si",
         CUT.format("its last line, 2, ends inside 'is tilingDependent support tiling sink…'")),
    ],
)  # fmt: skip
def test_a_refusal_says_exactly_where_and_why(content: str, words: str, tmp_path: Path) -> None:
    assert refusal(tmp_path / "dump.txt", content.encode()) == words


@pytest.mark.parametrize("end", ["FX graph", "FX graph compiled to static Ascend GE graph, graph id: 0", ""])
def test_a_last_line_that_shows_no_cut_is_read(end: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{CPP}nothing\n{CPP}{end}")
    assert read(tmp_path / "a.log").steps


def test_what_is_no_regular_file_or_too_large_or_unreadable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder is no dump that is read here\."):
        read(tmp_path / "folder")
    (tmp_path / "exact.log").write_bytes(b"[INFO] GE \n".ljust(100))
    assert read(tmp_path / "exact.log", limit=100).forms == ()
    assert LIMIT_BYTES == 64 * 1024 * 1024
    assert refusal(tmp_path / "utf.txt", b"a\xff") == "is no UTF-8 text: byte 1 is 0xff."
    assert refusal(tmp_path / "zero.txt", b"a\0").startswith("is binary. A serialised graph (.pb, .om, .air)")
    assert refusal(tmp_path / "deep.py", b"a = ge.Abs(" + b"-" * 100_000 + b"1)\n") == "nests too deep to be read."


def test_protobufs_text_is_read_as_its_grammar_says() -> None:
    assert parsed("# note\na: 1 a: [2, 3] b { c: 'x\\n' } b < c: \"y\" > d { }; g: -1", "") == {
        "a": ["1", "2", "3"],
        "b": [{"c": ["x\n"]}, {"c": ["y"]}],
        "d": [{}],
        "g": ["-1"],
    }
    assert parsed('_a: "two\nlines" _a: "\\q\\x"', "") == {"_a": ["two\nlines", "\\q\\x"]}
    for wrong in ("{ }", "a: ] b", "7: 1", '"a": 1', "a: 1 ]", "}", "a { b: }", "a = 1"):
        with pytest.raises(NotProtobuf, match="line 1"):
            parsed(wrong, "")
    with pytest.raises(NotProtobuf, match="line 3"):
        parsed("a: 1\nb: 2\n}", "")
    assert text(parsed("a: 1 a: 2 a { }", ""), "a") == "2"
    assert text({}, "a") == ""
    assert attributes(parsed('attr { key: "k" value { s: "1" } value { s: "2" } } attr { key: "l" }', "")) == {
        "k": {"s": ["2"]},
        "l": {},
    }


def test_the_least_static_graph_decides_and_mixed_lies_between() -> None:
    def builds(*kinds: str) -> str:
        compiled = tuple(Compiled(graph=n, inputs="static", build=kind) for n, kind in enumerate(kinds))  # type: ignore
        return Artefact(name="a", forms=(), compiled=compiled).sinking.ge_build

    assert builds("static", "dynamic", "static") == "dynamic"
    assert builds("static", "static") == "static"
    assert builds() == "unknown"


def test_a_reason_without_its_recompilation_is_passed_over(tmp_path: Path) -> None:
    """A log whose beginning is cut off."""
    orphan = recompiling("0/1", "forward", "0/0: size mismatch at index 0")[1:]
    whole = recompiling("1/1", "step", "1/0: tensor 'x' size mismatch at index 0. expected 4, actual 6")
    path = tmp_path / "torch.log"
    path.write_text(lines(*orphan, *whole))
    (found,) = read(path).recompiles
    assert found.compile_id == "1/1"
    path.write_text(lines(*orphan, *recompiling("2/1", "forward")))
    assert read(path).recompiles == ()
