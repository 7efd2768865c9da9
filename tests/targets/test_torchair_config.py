"""The genuine configuration, decompositions and words of TorchAir, on fakes of its classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.variables.streams
import torch.distributed

from npucompose.errors import ConfigError
from npucompose.npu.static_graph import conversions as converters
from npucompose.npu.static_graph.records import Undecided
from npucompose.npu.torchair import config, refusals
from npucompose.npu.torchair.config import node_filter
from npucompose.results.graphs import Outside
from npucompose.schema.adapt import Compose, FillArgs
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.vendor.compiler import LEAVES
from tests.passes.adapted_samples import rules_of
from tests.targets.torchair_fakes import MODES, NO_CONVERTER, Asked, Packages, Tree

# Configuration.


def before(*_: Any) -> None:
    pass


def after(*_: Any) -> None:
    pass


def test_a_leaf_is_written_and_read_by_its_genuine_path() -> None:
    made = Tree()
    config.write(made, LEAVES["debug.graph_dump.path"], "out")
    assert made.debug.graph_dump._path == "out"
    assert config.read(made, LEAVES["debug.graph_dump.path"]) == "out"
    made.debug.graph_dump._path = SimpleNamespace(_value=["a", "b"])
    assert config.read(made, LEAVES["debug.graph_dump.path"]) == ("a", "b")
    made.debug.graph_dump.type = ["py"]
    assert config.read(made, LEAVES["debug.graph_dump.type"]) == ("py",)
    config.write(made, LEAVES["debug.graph_dump.type"], ("py", "txt"))
    assert made.debug.graph_dump.type == ["py", "txt"]


def test_patterns_of_names_become_a_filter_and_a_pool_one_handle(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = iter([(1, 0), (2, 0)])
    monkeypatch.setattr(torch, "npu", SimpleNamespace(graph_pool_handle=lambda: next(handles)), raising=False)
    made = Tree()
    leaf, names = LEAVES["aclgraph_config.use_custom_pool"], LEAVES["debug.data_dump.filter"]
    found = []
    for name in ("one", "two", "one"):
        config.write(made, leaf, name)
        found.append(config.read(made, leaf))
    assert found == [(1, 0), (2, 0), (1, 0)]
    config.write(made, leaf, None)
    assert made.aclgraph_config.use_custom_pool is None
    config.write(made, names, ("mm",))
    node = SimpleNamespace(name="mm", target="aten.mm.default")
    assert config.read(made, names)(node) is node
    config.write(made, names, None)
    assert made.debug.data_dump.filter is None


class Refusing:
    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "error", error)

    def __setattr__(self, name: str, value: Any) -> None:
        raise self.error  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (ValueError(" not that\nbut this"), "not that"), (TypeError("wrong"), "wrong"),
        (AttributeError("fixed"), "fixed"), (FileNotFoundError("gone"), "gone"),
        (ValueError(), "ValueError"), (ValueError(" \n "), "ValueError"),
    ],
)  # fmt: skip
def test_what_the_genuine_class_refuses_is_told_with_the_options_path(error: Exception, first: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.write(
            SimpleNamespace(debug=SimpleNamespace(graph_dump=Refusing(error))), LEAVES["debug.graph_dump.type"], "x"
        )
    assert str(caught.value) == f"compiler.debug.graph_dump.type='x': the genuine class refuses it: {first}"
    with pytest.raises(KeyError):
        config.write(
            SimpleNamespace(debug=SimpleNamespace(graph_dump=Refusing(KeyError()))),
            LEAVES["debug.graph_dump.type"],
            "x",
        )


def test_only_what_was_asked_for_is_set_and_a_folder_is_made_below_the_files(
    packages: Packages, tmp_path: Path
) -> None:
    asked: Any = Asked({
        "debug.graph_dump.type": "py", "dump_config.enable_dump": True, "dump_config.dump_path": str(tmp_path / "abs"),
        "debug.data_dump.path": "unneeded", "npugraph_ex.clone_output": True, "npugraph_ex.dump_tensor_data": True,
        "npugraph_ex.data_dump_dir": "below",
    })  # fmt: skip
    made = config.torchair_config(asked, GE, before, after, tmp_path / "files")
    assert made.mode == GE
    assert (made.post_grad_custom_pre_pass, made.post_grad_custom_post_pass) == (before, after)
    assert (made.debug.graph_dump.type, made.debug.graph_dump._path) == ("py", str(tmp_path / "files"))
    assert made.dump_config.dump_path == str(tmp_path / "abs")
    assert made.debug.data_dump._path == "unneeded"
    assert "fx_summary" not in vars(made.debug)
    assert not any("clone_output" in name for name in vars(made))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["abs", "files"]
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["below"]
    bare = config.torchair_config(asked, ACLGRAPH, before, after)
    assert "_path" not in vars(bare.debug.graph_dump)
    flat = config.npugraph_ex_options(asked, before, after, tmp_path / "files")
    assert flat == {
        "clone_output": True, "dump_tensor_data": True, "data_dump_dir": str(tmp_path / "files" / "below"),
        "post_grad_custom_pre_pass": before, "post_grad_custom_post_pass": after,
    }  # fmt: skip
    assert list(asked) == [*asked.changed()]
    of_mapping = config.npugraph_ex_config(flat)
    assert of_mapping.mode == NPUGRAPH_EX
    assert of_mapping.clone_output is True
    assert of_mapping.post_grad_custom_post_pass is after


def test_decompositions_are_torchs_own_for_a_name_or_an_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    monkeypatch.setattr(refusals, "convertible", lambda: {"third": "first"})
    found = refusals.decompositions(["aten.gelu.default"], config.MODES[ACLGRAPH])
    assert found == {aten.gelu.default: decomposition_table[aten.gelu.default]}
    assert refusals.decompositions([], config.MODES[ACLGRAPH]) == {}
    of_ge = refusals.decompositions(["aten.addmm"], config.MODES[GE])
    assert of_ge.pop("third") == "first"
    assert {str(op) for op in of_ge} >= {"aten.addmm.default", "aten.addmm.out"}
    assert all(str(op).startswith("aten.addmm.") for op in of_ge)
    with pytest.raises(ConfigError) as caught:
        refusals.decompositions(["aten.gelu", "aten.gleu", "aten.nothing_like_it"], config.MODES[GE])
    assert len(caught.value.problems) == 2
    assert "'aten.gleu'. Did you mean 'aten.g" in caught.value.problems[0]
    assert all(problem.endswith("@ target.decompose") for problem in caught.value.problems)
    assert not any("Choices" in problem for problem in caught.value.problems)


# Attention.

FIRST = "f(Tensor query, Tensor key, float keep_prob=1.0, int seed=0) -> Tensor"
THIRD = "g(Tensor query, Tensor key, float keep_prob=1.0, int[]? prefix=None, Tensor? seed=None) -> Tensor"


def attention_operators(converter: bool = False) -> tuple[Any, list[Any]]:
    asked: list[Any] = []

    def first(**named: Any) -> tuple[Any, ...]:
        asked.append(named)
        return (1, 2, 3, 4, 5, 6, 7)

    first._schema = torch._C.parse_schema(FIRST)  # type: ignore[attr-defined]
    third = SimpleNamespace(default=SimpleNamespace(_schema=torch._C.parse_schema(THIRD)))
    third.default.__hash__ = None
    if converter:
        third.default._ge_converter = object()
    return SimpleNamespace(third=third.default, first=first), asked


def test_the_third_attention_is_taken_for_the_first_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = attention_operators()
    npu = SimpleNamespace(npu_fusion_attention_v3=SimpleNamespace(default=made.third))
    monkeypatch.setattr(torch.ops, "npu", npu)
    query = torch.ones(2, dtype=torch.float16)
    taken = refusals._as_first(made.third, made.first)
    results = taken(query, "key", prefix=None, seed=None)
    assert results[:4] == (1, 2, 3, 4)
    assert [(seed.dtype, seed.tolist()) for seed in results[4:]] == [(torch.int64, [0])] * 2
    assert asked == [{"query": query, "key": "key"}]
    assert taken(query, "key", 0.5) is NotImplemented
    assert taken(query, "key", prefix=[1]) is NotImplemented
    assert taken(query, "key", 1.0, actual_seq_qlen=[1]) is NotImplemented
    assert refusals._as_first(SimpleNamespace(_schema=made.third._schema), made.first)(query, "key") == (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    )


@pytest.mark.parametrize(("has", "converter", "count"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_only_what_torch_npu_has_and_torchair_cannot_convert_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch, has: bool, converter: bool, count: int
) -> None:
    class Operator:
        _schema = torch._C.parse_schema(THIRD)

    if converter:
        Operator._ge_converter = None  # type: ignore[attr-defined]
    first = SimpleNamespace(default=SimpleNamespace(_schema=torch._C.parse_schema(FIRST)))
    named = {"npu_fusion_attention": first, "npu_fusion_attention_grad": first}
    if has:
        named["npu_fusion_attention_grad_v3"] = SimpleNamespace(default=Operator())  # type: ignore[assignment]
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(**named))
    assert len(refusals.convertible()) == count


# Words.


def test_a_missing_converter_names_the_operator_and_the_line() -> None:
    found = refusals.failure_of(RuntimeError(NO_CONVERTER), config.MODES[GE], "graph_3")
    assert found is not None
    assert found.words == (
        "TorchAir has no GE converter for torch.ops.aten.norm.ScalarOpt_dim (node norm_1) at model.py:7 in forward: "
        "return x.norm(). It says: ge_converter is not implemented, sorry. What would be taken: "
        "target.decompose=[aten.norm]  # torch takes it apart; or mode=npugraph_ex, which captures operators and "
        "converts none"
    )
    assert (found.graph, found.operator, found.node) == ("graph_3", "aten.norm.ScalarOpt_dim", "norm_1")
    unplaced = refusals.failure_of(RuntimeError(NO_CONVERTER.partition("Original")[0]), config.MODES[ACLGRAPH])
    assert unplaced is not None
    assert unplaced.without_fix == (
        "TorchAir has no GE converter for torch.ops.aten.norm.ScalarOpt_dim (node norm_1). "
        "It says: ge_converter is not implemented, sorry."
    )
    assert refusals.failure_of(RuntimeError("ge_converter is not implemented"), config.MODES[GE]) is None
    in_two = refusals.failure_of(NotImplementedError(NO_CONVERTER, "and more"), config.MODES[GE])
    assert in_two is not None
    assert (in_two.source, in_two.node) == (found.source, "norm_1")


def test_what_only_cann_decides_is_no_verdict_and_says_whether_there_is_a_converter() -> None:
    for operator, words in (
        ("npu.npu_mish.default", "has no GE converter for torch.ops.npu.npu_mish.default, and generates one only from"),
        (
            "npu.npu_lightning_indexer.default",
            "'s GE converter of torch.ops.npu.npu_lightning_indexer.default asks CANN",
        ),
    ):
        said = NO_CONVERTER.replace("aten.norm.ScalarOpt_dim", operator).replace(
            "ge_converter is not implemented", "Failed to load GetRegisteredIrDef from libge_runner.so"
        )
        found = refusals.failure_of(RuntimeError(said), config.MODES[GE])
        assert found is not None
        assert isinstance(found, Undecided)
        assert found.operator == operator
        assert found.what.startswith(f"TorchAir {words}".replace("TorchAir '", "TorchAir'"))
    assert not isinstance(refusals.failure_of(RuntimeError(NO_CONVERTER), config.MODES[GE]), Undecided)


def test_a_converter_that_raises_is_a_failure_of_the_conversion_and_of_nothing_else() -> None:
    broken = RuntimeError(NO_CONVERTER.replace("ge_converter is not implemented", "dtype of index"))
    found = refusals.failure_of(broken, config.MODES[GE])
    assert found is not None
    assert found.what == "TorchAir's GE converter refuses torch.ops.aten.norm.ScalarOpt_dim"
    assert (found.reason, found.fix) == ("dtype of index, sorry", None)
    assert refusals.failure_of(broken, config.MODES[ACLGRAPH]) is None


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("aten._local_scalar_dense.default", "numbers that the caller gives: a list[int] as an argument of forward"),
        ("aten.softplus.default", "adapt=ascend  # its rules make operators with a converter of aten.softplus"),
        ("aten.im2col.default", "target.decompose=[aten.im2col]  # torch takes it apart; or mode=npugraph_ex"),
        ("aten.histc.default", "mode=npugraph_ex, which captures operators and converts none"),
    ],
)
def test_what_would_be_taken_instead(operator: str, words: str) -> None:
    assert converters.taken_instead(operator, "2.13.0").startswith(words)


def test_the_operators_that_adapt_ascend_replaces_are_those_of_its_rules() -> None:
    rules = [rule for rule in rules_of("ascend").rules if isinstance(rule, (Compose, FillArgs))]
    assert {rule.op for rule in rules} == converters.ADAPTED


def test_what_a_capture_cannot_hold_is_the_first_such_operator_of_the_graph() -> None:
    scalar = Outside(node="item", operator="aten._local_scalar_dense", reason="why.", source="m.py:3: x.tolist()")
    found = refusals.not_captured(RuntimeError("no\nmore"), NPUGRAPH_EX, config.MODES[NPUGRAPH_EX], [scalar], "graph_1")
    assert found is not None
    assert found.without_fix == (
        "mode=npugraph_ex cannot capture aten._local_scalar_dense (node item) at m.py:3: x.tolist(). "
        "It says: why. (no)."
    )
    assert (found.fix, found.graph) == (converters.NUMBERS, "graph_1")
    assert refusals.not_captured(RuntimeError("no"), NPUGRAPH_EX, config.MODES[NPUGRAPH_EX], [], "graph_1") is None
    overlap = RuntimeError("some elements refer to a single memory location")
    told = refusals.not_captured(overlap, NPUGRAPH_EX, config.MODES[NPUGRAPH_EX], [scalar], "graph_1")
    assert told is not None
    assert told.what.startswith("TorchAir's in-place pass")


def test_the_in_place_pass_has_its_own_way_out_in_each_captured_mode() -> None:
    error = RuntimeError("\nsome elements refer to a single memory location\nmore")
    told = {mode: refusals.failure_of(error, config.MODES[mode]) for mode in MODES}
    assert told[GE] is told["eager"] is None
    fixes = {mode: found.fix or "" for mode, found in told.items() if found is not None}
    assert fixes[NPUGRAPH_EX].startswith("compiler.npugraph_ex.inplace_pass=false")
    assert fixes[ACLGRAPH].startswith("compiler.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true")
    assert {f.reason for f in told.values() if f} == {"some elements refer to a single memory location"}
    assert refusals.failure_of(RuntimeError("else"), config.MODES[ACLGRAPH]) is None


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (("mm_1",), True), (("aten.mm.default",), True), (("aten.mm",), True), (("aten",), False), (("mm",), False),
        (("a*.m?",), True), (("x", "mm_*"), True), ((), False), (("ATEN.MM",), False),
    ],
)  # fmt: skip
def test_a_node_is_chosen_by_its_name_its_operator_or_that_without_overload(
    patterns: tuple[str, ...], chosen: bool
) -> None:
    node = SimpleNamespace(name="mm_1", target="aten.mm.default")
    assert (node_filter(patterns)(node) is node) is chosen
    assert chosen or node_filter(patterns)(node) is None


def test_streams_of_the_model_s_own_code_are_told_by_their_first_line_in_modes_that_take_none() -> None:
    graph = torch.fx.Graph()
    module: Any = SimpleNamespace(graph=graph)
    x = graph.placeholder("x")
    assert refusals.own_stream(module) is None
    record = graph.call_function(torch.ops.streams.record_event, (0, 1))
    record.meta["stack_trace"] = '  File "/a/model.py", line 7, in forward\n    self.ready.record()\n'
    graph.output(x)
    line = refusals.own_stream(module)
    assert line == "model.py:7 in forward: self.ready.record()"
    told = refusals.streams_not_taken(TypeError("unhashable type: 'dict'\nmore"), ACLGRAPH, module, "graph_0")
    assert told is not None
    assert told.what.startswith("TorchAir's mode=reduce-overhead does not take streams and events")
    assert (told.graph, told.source, told.reason) == ("graph_0", line, "unhashable type: 'dict'")
    assert told.fix is not None
    assert told.fix.startswith("mode=npugraph_ex; ")
    assert refusals.streams_not_taken(ValueError("no converter for control_deps"), GE, module, "graph_0") is not None
    assert refusals.streams_not_taken(ValueError("something else"), GE, module, "graph_0") is None
    assert refusals.streams_not_taken(ValueError("no converter for control_deps"), GE, None, "graph_0") is None


def test_super_kernel_options_that_torch_npu_refuses_are_told_by_their_path() -> None:
    error = RuntimeError("Invalid optimize_options param key: 'nonsense'.", "[ERROR] a date")
    told = refusals.failure_of(error, config.MODES[NPUGRAPH_EX])
    assert told is not None
    assert told.words == (
        "torch.npu.NPUGraph refuses compiler.npugraph_ex.super_kernel_optimize_options. "
        "It says: Invalid optimize_options param key: 'nonsense'."
    )
    assert refusals.failure_of(error, config.MODES[GE]) is None
