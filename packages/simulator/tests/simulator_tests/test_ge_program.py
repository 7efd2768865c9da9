"""What runs in the place of a GE graph: values, arguments out of GE's inputs, and a file for a later process."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from npu_simulator.ge_program import SAME, WAIT, GeProgram, GraphOnly
from npucompose import ops
from npucompose.targets.npu_offline import wheel
from simulator_tests.processes import in_a_process
from tests.npu.needs import offline


def concrete(
    function: Any, outputs: dict[int, int], *infos: Any, symbols: Any = (), metas: Any = (), count: int = 2
) -> Any:
    """TorchAir's graph, the part that a program is made of."""
    dtypes = SimpleNamespace(list=SimpleNamespace(i=[0] * count))
    return SimpleNamespace(
        _fx_graph=function, graph=SimpleNamespace(attr={"_output_dtypes": dtypes}), _fx_outputs_mapping=outputs,
        _fx_input_names=list("abc"[: len(infos) or 1]), _input_info_list=[SimpleNamespace(func=i) for i in infos],
        _all_sym_input_idx=dict(symbols), _all_meta_tensor_input=dict(metas),
    )  # fmt: skip


def program(*args: Any, **named: Any) -> GeProgram:
    return GeProgram.from_concrete(concrete(*args, **named))


def one(index: int) -> Any:
    return SimpleNamespace(fx_input_idx=index)


def test_results_go_where_ge_gives_them_and_into_assigned_memory() -> None:
    x = torch.ones(2, requires_grad=True)
    first, second = program(lambda a: (a + 1, a * 3), {0: 1, 1: 0}, one(0)).run([x], None)
    assert (first.tolist(), second.tolist(), first.requires_grad) == ([3, 3], [2, 2], False)
    only = program(lambda a: (a + 1, a * 3), {0: 1}, one(0))
    kept = torch.zeros(5)
    assert only.run([x], [kept, None])[0] is kept
    assert [value is None for value in only.run([x], None)] == [True, False]


def test_the_fx_graphs_arguments_are_found_among_ges_inputs() -> None:
    packed = SimpleNamespace(fx_input_idx_list=[0, 1])
    tensor = torch.ones(3)
    found = program(None, {}, one(2), packed, None, symbols={"s0": 0, "s1": 1})
    arguments = found.arguments([tensor, torch.tensor([7, 8]), None])
    assert arguments[:2] == [7, 8]
    assert all(type(number) is int for number in arguments[:2])
    assert arguments[2] is tensor
    alone = program(None, {}, one(0), one(1), symbols={"s0": 1}).arguments([tensor, torch.tensor(4)])
    assert (alone[0] is tensor, alone[1], type(alone[1])) == (True, 4, int)


def test_an_input_without_elements_that_ge_does_not_take_is_made_anew() -> None:
    metas = {0: torch.ones(2, 3), 1: torch.ones(0, 3, dtype=torch.int8)}
    found = program(None, {}, one(0), None, metas=metas)
    tensor = torch.ones(2, 3)
    given, made = found.arguments([tensor])
    assert given is tensor
    assert (made.shape, made.dtype) == ((0, 3), torch.int8)
    kept = program(None, {}, one(0), one(1), metas=metas)
    assert kept.arguments([tensor, tensor])[1] is tensor


def test_a_symbol_that_ge_does_not_take_is_read_off_a_dimension() -> None:
    def size(expression: str) -> Any:
        return SimpleNamespace(node=SimpleNamespace(expr=expression))

    metas = {1: SimpleNamespace(shape=(size("s9"), size("s0"))), 2: SimpleNamespace(shape=(4, size("s0"), size("s1")))}
    found = program(None, {}, None, None, one(2), symbols={"s0": 0}, metas=metas)
    assert found.sizes == {0: ((1, 1), (2, 1))}
    assert found.arguments([None, None, torch.ones(4, 6, 9)])[0] == 6
    assert program(None, {}, None, one(1), symbols={"s7": 0}, metas=metas).arguments([None, torch.ones(5)])[0] is None


# Operators of GE's graph alone.


def only_ges(root: Path) -> set[str]:
    """TorchAir's operators whose kernel for the CPU only raises, by the text of the wheel."""
    found: set[str] = set()
    for file in root.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        raising = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            and isinstance(node.body[-1], ast.Raise) and len(node.body) == 1
        }  # fmt: skip
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Call(args=[_, ast.Constant(value=name), ast.Constant(value="CPU")]),
                    args=[ast.Name(id=kernel)],
                ) if kernel in raising:
                    found.add(f"air::{name}")
    return found


@offline
def test_every_operator_that_only_ge_computes_has_values() -> None:
    known = only_ges(wheel.locate() / "torch_npu/dynamo/torchair")
    assert known == {*SAME, WAIT}


@pytest.mark.parametrize("name", sorted(SAME))
def test_lengths_as_a_tensor_give_what_the_same_numbers_give(name: str) -> None:
    ops.define()
    library = torch.library.Library("air", "FRAGMENT")
    bare = name.partition("::")[2]
    slots = {"num_heads": 2, "scale": 0.5, "kv": "actual_seq_lengths_kv"}
    if name.endswith("_v2"):
        slots = {"num_query_heads": 2, "softmax_scale": 0.5, "kv": "actual_seq_kvlen"}
    lengths = str(slots.pop("kv"))
    numbers = "".join(f", {type(value).__name__} {slot}=1" for slot, value in slots.items())
    if not hasattr(torch.ops.air, bare):
        library.define(
            f"{bare}(Tensor query, Tensor key, Tensor value, *, Tensor? {lengths}=None{numbers}, "
            "str input_layout='BSH', int num_key_value_heads=0) -> (Tensor, Tensor)"
        )
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 1, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    same: dict[str, Any] = {"num_key_value_heads": 2, "input_layout": "BNSD"}
    wanted = torch.ops.npu.npu_fused_infer_attention_score(
        query, key, value, actual_seq_lengths_kv=[3, 5], num_heads=2, scale=0.5, **same
    )[0]
    with GraphOnly():
        given = getattr(torch.ops.air, bare)(query, key, value, **{lengths: torch.tensor([3, 5])}, **slots, **same)[0]
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert torch.equal(given, wanted)


# A file for a later process.


def traced(operator: Any = torch.ops.aten.mul.Tensor) -> GeProgram:
    """`a, n -> operator(a, [2, 3]) + full([n, 2], 1.5)`"""
    graph, root = fx.Graph(), nn.Module()
    root.register_buffer("factor", torch.tensor([2.0, 3.0]))
    a, n = graph.placeholder("a"), graph.placeholder("n")
    scaled = graph.call_function(operator, (a, graph.get_attr("factor")))
    named = {"dtype": torch.float64, "device": torch.device("cpu")}
    made = graph.call_function(torch.ops.aten.full.default, ([n, 2], 1.5), named)
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (scaled, made)),))
    return program(fx.GraphModule(root, graph), {0: 1}, one(0), one(1), symbols={"s0": 1})


def test_a_program_is_the_same_out_of_its_file(tmp_path: Path) -> None:
    file, inputs = tmp_path / "a.fx", [torch.ones(3, 2), torch.tensor(3)]
    traced().save(file, "some text")
    assert file.stat().st_mode & 0o777 == 0o600
    loaded = GeProgram.load(file, "some text")
    assert loaded is not None
    assert torch.equal(loaded.run(inputs, None)[1], traced().run(inputs, None)[1])
    assert GeProgram.load(file, "another text") is None


def test_a_file_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    traced().save(tmp_path / "a.fx", "some text")
    (tmp_path / "a.fx").chmod(0o620)
    with pytest.raises(PermissionError, match="must belong to the user, and to no other"):
        GeProgram.load(tmp_path / "a.fx", "some text")


def test_a_graph_with_what_no_file_can_hold_is_not_kept(tmp_path: Path) -> None:
    def local(a: Any, b: Any) -> Any:
        return a * b

    with pytest.raises(TypeError, match="local"):
        traced(local).save(tmp_path / "a.fx", "some text")
    with pytest.raises(TypeError, match="the FX graph holds 0, which is no tensor"):
        program(fx.symbolic_trace(nn.Sequential(nn.ReLU())), {0: 0}, one(0)).save(tmp_path / "a.fx", "some text")
    assert not list(tmp_path.iterdir())


@offline
def test_a_second_process_runs_a_cached_ge_graph_and_its_text_is_what_a_device_writes(tmp_path: Path) -> None:
    first, second = (in_a_process("ge_scripts.py", "cache", str(tmp_path)) for _ in range(2))
    assert first["equal"] == second["equal"] == [True, True, True]
    assert (first["compiled"], second["compiled"]) == (2, 0)
    assert first["texts"] == second["texts"]
    assert not any("npucompose" in text for text in first["texts"])
    without = in_a_process("ge_scripts.py", "cache_of_a_device", str(tmp_path))
    assert "has no FX graph to run in GE's place: it comes out of a cache" in without["answer"]


@offline
def test_streams_that_wait_for_tensors_run_in_max_autotune(tmp_path: Path) -> None:
    """TorchAir fced8842, docs/zh/ascend_ir/features/advanced/multi_stream.md; and a wait whose result is used."""
    found = in_a_process("ge_scripts.py", "multi_stream", str(tmp_path))
    assert found["equal"] == [True] * 5
    assert sorted(found["streams"]) == ["1", "2"]


@offline
def test_torch_compile_knows_the_backends_by_name(tmp_path: Path) -> None:
    found = in_a_process("ge_scripts.py", "by_name", str(tmp_path))
    assert found["npu"] == [True, "ge_run"]
    assert found["npugraph_ex"] == [True, "capture", "replay"]
    assert 'has no torch.compile(backend="npugraphs"): there is no device memory' in found["npugraphs"]


@offline
def test_an_export_names_the_file_that_a_device_would_write(tmp_path: Path) -> None:
    found = in_a_process("ge_scripts.py", "export", str(tmp_path))
    assert found["warnings"] == [
        f"simulator: net.air is not written, because CANN's GE makes it; {tmp_path} has what TorchAir itself writes."
    ]
    assert {"dynamo.pbtxt", "options.json"} <= set(found["files"])
