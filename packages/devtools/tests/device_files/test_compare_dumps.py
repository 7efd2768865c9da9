"""Two dumps of one step, as TorchAir, GE and msprobe write them, up to the first operator beyond its contract."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from npucompose.cli import main
from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.results.artefacts import DumpedOperator, DumpedValue, Tensors
from npucompose.results.measured import EXACT, NumericTolerance, tolerance_of
from npucompose_devtools.accuracy import compare as accuracy
from npucompose_devtools.accuracy.compare import Question, contract, declared, paired
from npucompose_devtools.artefacts import read

Call = tuple[str, str, Sequence[Any], Sequence[Any]]
"""(node, operator, inputs, results)."""
X = np.random.default_rng(0).standard_normal((4, 4)).astype("f4")
W = np.random.default_rng(1).standard_normal((4, 4)).astype("f4")


def test_of_every_way_to_agree_it_is_known_which_is_worse() -> None:
    assert set(accuracy._RANK) == set(get_args(accuracy.Agreement))


def test_a_difference_is_within_what_eagers_value_allows() -> None:
    value, allowed = DumpedValue(slot="0", file="one"), NumericTolerance(0.6, 0.0)

    def agreement(eager: float, of_the_graph: float) -> str:
        dumps: Any = [SimpleNamespace(load=lambda _, x=x: torch.tensor([x])) for x in (eager, of_the_graph)]
        return accuracy._values(value, value, dumps, None, lambda _: allowed).agreement

    assert (agreement(1.0, 0.5), agreement(0.5, 1.0)) == ("within", "beyond")


def step(*, mm: float = 0.0, tanh: float = 0.0, t: float = 0.0) -> list[Call]:
    """x @ w, transposed, tanh; each result off by so much."""
    y = X @ W + np.float32(mm)
    z = y.T.copy() + np.float32(t)
    return [
        ("mm", "aten.mm.default", [X, W], [y]),
        ("t", "aten.t.default", [y], [z]),
        ("tanh", "aten.tanh.default", [z], [np.tanh(z) + np.float32(tanh)]),
    ]


def torchair(folder: Path, calls: Sequence[Call]) -> Path:
    folder.mkdir(parents=True)
    for at, (node, operator, inputs, outputs) in enumerate(calls):
        for kind, values in (("INPUT", inputs), ("OUTPUT", outputs)):
            for slot, value in enumerate(values):
                np.save(folder / f"{node}-{operator}.{kind}.{slot}.{20261125101500000000 + at}.npy", value)
    return folder


def ge(folder: Path, calls: Sequence[Call]) -> Path:
    types = {"mm": "MatMulV3", "t": "Transpose", "tanh": "Tanh"}
    folder.mkdir(parents=True)
    for at, (node, _, inputs, outputs) in enumerate(calls):
        for kind, values in (("input", inputs), ("output", outputs)):
            for slot, value in enumerate(values):
                name = f"{types[node]}.{types[node]}_{at}.7.3.{1764063300000000 + at}.{kind}.{slot}.npy"
                np.save(folder / name, value)
    return folder


def msprobe(folder: Path, calls: Sequence[Call], *, tensors: bool = True, lines: bool = True) -> Path:
    (folder / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for _, operator, inputs, outputs in calls:
        name = f"Torch.{operator.split('.')[1]}.0.forward"
        data[name] = {
            "input_args": [value(folder, f"{name}.input.{at}.pt", one, tensors) for at, one in enumerate(inputs)],
            "input_kwargs": {"dim": {"type": "int", "value": 1}},
            "output": [value(folder, f"{name}.output.{at}.pt", one, tensors) for at, one in enumerate(outputs)],
        }
    (folder / "dump.json").write_text(
        json.dumps({"task": "tensor", "level": "L1", "framework": "pytorch", "data": data})
    )
    if lines:
        frames = ["File /x/site-packages/msprobe/pytorch/hook.py, line 1, in f, \n hook()",
                  "File /srv/app/model.py, line 13, in forward, \n return y.t().tanh()"]  # fmt: skip
        (folder / "stack.json").write_text(json.dumps({"0": [list(data), frames]}))
    return folder


def value(folder: Path, name: str, array: Any, tensors: bool) -> dict[str, Any]:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    held = {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape), "Max": float(tensor.max()),
            "Min": float(tensor.min()), "Mean": float(tensor.mean()), "Norm": float(tensor.norm())}  # fmt: skip
    if tensors:
        torch.save(tensor, folder / "dump_tensor_data" / name)
        held["data_name"] = name
    return held


Write = Callable[[Path, Sequence[Call]], Path]


def compared(capsys: pytest.CaptureFixture[str], *words: Path | str) -> tuple[int, str]:
    status = main(["compare-dumps", *map(str, words)])
    out = capsys.readouterr()
    return status, out.out + out.err


@pytest.mark.parametrize("write", [torchair, msprobe])
def test_equal_dumps_hold_and_a_seeded_difference_is_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager, same, broken = (
        write(tmp_path / name, calls) for name, calls in (("e", step()), ("s", step()), ("b", step(tanh=0.1)))
    )
    status, page = compared(capsys, eager, same)
    assert status == 0
    assert "3 operators in both, 3 by name" in page
    assert "compared: 3 same bits" in page
    status, page = compared(capsys, eager, broken)
    assert status == 1
    assert "compared: 2 same bits, 1 beyond" in page
    assert "first beyond its contract: " in page
    assert "tanh" in page
    assert "differs by up to 0.1" in page
    assert "the difference is its own" in page


def test_a_dump_of_ge_is_paired_by_operator_and_its_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager, graph = torchair(tmp_path / "eager", step()), ge(tmp_path / "graph", step(tanh=0.1))
    status, page = compared(capsys, eager, graph)
    assert status == 1
    assert "2 operators in both, 0 by name, 2 by their order" in page
    assert "Tanh_2 (tanh), in eager tanh" in page
    assert "only in the graph: Transpose_1 (clone)" in page


def test_a_difference_that_grows_is_told_from_one_that_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = torchair(tmp_path / "eager", step())
    grown = torchair(tmp_path / "grown", step(mm=1e-6, tanh=0.1))
    status, page = compared(capsys, eager, grown)
    assert status == 1
    assert "they differ by may have grown here" in page
    assert "the largest difference within a contract: " in page


def test_what_only_moves_data_must_keep_the_bits_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager, moved = torchair(tmp_path / "eager", step()), torchair(tmp_path / "moved", step(t=1e-7))
    status, page = compared(capsys, eager, moved)
    assert status == 1
    assert "t (aten.t.default)" in page
    passed_on = torchair(tmp_path / "passed_on", step(mm=1e-6))
    assert compared(capsys, eager, passed_on)[0] == 0


LISTINGS = {
    "001_aot_forward_graph.txt": "",
    "002_aot_forward_graph_after_fuse_tanh.txt": """
        # File: /srv/app/model.py:13 in forward, code: return y.t().tanh()
        tanh: "bf16[4, 4]" = torch.ops.aten.tanh.default(t)
""",
}


def listings(folder: Path) -> list[str]:
    words: list[str] = []
    for name, more in LISTINGS.items():
        head = (
            "class <lambda>(torch.nn.Module):\n    def forward(self):\n        mm = torch.ops.aten.mm.default(x, w)\n"
        )
        (folder / name).write_text(f"{head}{more}")
        words += ["--listing", str(folder / name)]
    return words


def test_listings_name_the_pass_the_line_and_the_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager, broken = torchair(tmp_path / "eager", step()), torchair(tmp_path / "broken", step(tanh=0.5))
    status, page = compared(capsys, eager, broken, *listings(tmp_path))
    assert status == 1
    assert "model.py:13 in forward: return y.t().tanh()" in page
    assert "made by the pass fuse_tanh" in page
    assert "tolerance 0.01 + 0.03 * |reference|" in page  # the listing says bf16, numpy float32
    half = torchair(tmp_path / "half", step(tanh=0.005))
    assert compared(capsys, eager, half)[0] == 1
    assert compared(capsys, eager, half, *listings(tmp_path))[0] == 0
    assert compared(capsys, eager, half, "--dtype", "bfloat16")[0] == 0


def test_a_listing_that_is_no_fx_graph_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager = torchair(tmp_path / "eager", step())
    status, page = compared(capsys, eager, eager, "--listing", str(eager))
    assert status == 2
    assert f"{eager} is no FX graph that torch printed" in page


def test_msprobes_stack_names_the_models_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager, broken = msprobe(tmp_path / "eager", step()), msprobe(tmp_path / "broken", step(tanh=0.1))
    assert "model.py:13 in forward: return y.t().tanh()" in compared(capsys, eager, broken)[1]


def test_statistics_alone_find_a_difference_and_prove_no_equality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [msprobe(tmp_path / name, calls, tensors=False) for name, calls in (("e", step()), ("b", step(tanh=0.1)))]
    status, page = compared(capsys, folders[0], folders[0])
    assert (status, "3 statistics agree" in page) == (0, True)
    status, page = compared(capsys, *folders)
    assert status == 1
    assert "Mean is" in page


def with_largest(folder: Path, largest: float) -> Path:
    """Statistics alone, whose every result has this maximum."""
    msprobe(folder, step(), tensors=False)
    data = json.loads((folder / "dump.json").read_text())
    for call in data["data"].values():
        call["output"][0]["Max"] = largest
    (folder / "dump.json").write_text(json.dumps(data))
    return folder


def test_a_statistic_that_no_tensor_has_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_largest(tmp_path / "e", 10**400)
    status, page = compared(capsys, folder, folder)
    assert (status, "3 statistics agree" in page) == (0, True)


def test_statistics_may_differ_within_the_contract_and_by_no_finite_number(tmp_path: Path) -> None:
    def dump(name: str, largest: float) -> Tensors:
        found = read(with_largest(tmp_path / name, largest)).tensors
        assert found is not None
        return found

    eager = dump("eager", 3.0)
    close = accuracy.compared(eager, dump("close", 3.000001), Question())
    assert (close.first, close.agreements) == (None, {"statistics agree": 3})
    beyond = accuracy.compared(eager, dump("beyond", math.inf), Question()).first
    assert beyond is not None
    assert (beyond.results, beyond.error) == ("beyond", None)


def test_of_several_results_the_widest_tolerance_is_told(tmp_path: Path) -> None:
    half = X.astype("f2")
    dumps = [
        torchair(tmp_path / name, [("a", "aten.abs.default", [X], [X, half + of])]) for name, of in (("e", 0), ("g", 1))
    ]
    eager, graph = (read(folder).tensors for folder in dumps)
    assert eager is not None
    assert graph is not None
    first = accuracy.compared(eager, graph, Question()).first
    assert first is not None
    assert (first.rtol, first.atol) == (tolerance_of("float16").rtol, tolerance_of("float16").atol)


def test_a_long_list_of_what_only_one_has_is_cut_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more: list[Call] = [(f"abs_{at}", "aten.abs.default", [X], [X]) for at in range(10)]
    eager, graph = torchair(tmp_path / "e", [*step(), *more]), torchair(tmp_path / "g", step())
    page = compared(capsys, eager, graph)[1]
    assert "only in eager: abs_0 (aten.abs.default), " in page
    assert "abs_7 (aten.abs.default) and 2 more" in page


@pytest.mark.parametrize(
    ("named", "tensors", "dtype"),
    [
        (None, ("float32", "bfloat16"), "bfloat16"),
        ("float16", ("float32", "float32"), "float16"),
        ("float64", ("float16", "float32"), "float16"),
        (None, ("int64", "float32"), "int64"),
        ("float16", ("int32", "int32"), "int32"),
        ("int64", ("float16", "float16"), "float16"),
    ],
)
def test_the_dtype_of_a_contract_is_the_less_exact_of_floats(
    named: str | None, tensors: tuple[str, str], dtype: str
) -> None:
    assert accuracy._less_exact(named, *tensors) == dtype


def test_the_page_of_a_comparison(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = [(f"extra_{number}", "aten.abs.default", [X], [X]) for number in range(11)]
    torchair(Path("eager"), [*step(), *alone])
    torchair(Path("graph"), [*step(mm=1e-6, tanh=0.5), ("own", "aten.neg.default", [X], [X])])
    torchair(Path("close"), step(mm=1e-6))
    pages = [compared(capsys, "eager", "graph", *listings(tmp_path)), compared(capsys, "eager", "close")]
    assert [status for status, _ in pages] == [1, 0]
    text = "\n".join(page for _, page in pages)
    golden("device_files/compared.txt", re.sub(r"(within a contract:) 1\.\d+e-06", r"\1 1e-06", text))


def test_an_answer_for_programs_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager, broken = torchair(tmp_path / "eager", step()), torchair(tmp_path / "broken", step(tanh=0.1))
    assert main(["compare-dumps", str(eager), str(broken), "--json"]) == 1
    printed = capsys.readouterr().out
    answer = json.loads(printed)
    assert printed == f"{json.dumps(answer, indent=2)}\n"
    assert (answer["pairs"], answer["compared"], answer["first"]["name"]) == (3, 3, "tanh")
    assert answer["first"]["error"] == pytest.approx(0.1, rel=1e-4)


def test_another_shape_and_another_number_of_results_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = torchair(tmp_path / "eager", [("a", "aten.abs.default", [X], [X, X])])
    graph = torchair(tmp_path / "graph", [("a", "aten.abs.default", [X], [X[:2]])])
    status, page = compared(capsys, eager, graph)
    assert status == 1
    assert "[4, 4] in eager, [2, 4] in the graph" in page
    assert "2 results in eager, 1 in the graph" in page


def test_half_precision_beside_float32_is_held_to_the_less_exact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = X.astype("f2")
    eager = torchair(tmp_path / "eager", [("a", "aten.abs.default", [X], [X])])
    graph = torchair(tmp_path / "graph", [("a", "aten.abs.default", [half], [half])])
    assert compared(capsys, eager, graph)[0] == 0


def test_contracts_are_of_the_dtype_the_operator_and_the_rules() -> None:
    assert contract("view", "float16", same_inputs=True, rules={}) == EXACT
    assert contract("view", "float16", same_inputs=False, rules={}) == tolerance_of("float16")
    assert contract("mm", "int64", same_inputs=False, rules={"mm": NumericTolerance(1, 1)}) == EXACT
    rules = declared(check(compose(["adapt=ascend"])).experiment.adapt)
    allowed = contract("scatter_add", "float32", same_inputs=True, rules=rules)
    assert allowed.atol == max(tolerance_of("float32").atol, rules["scatter_add"].atol) > 0


def test_what_the_rules_for_a_device_allow_each_operator(golden: Callable[[str, str], None]) -> None:
    """Of a rule's operator and of all that it puts there the widest; those that only reject allow nothing."""
    found = declared(check(compose(["adapt=ascend"])).experiment.adapt)
    golden(
        "device_files/contracts.txt",
        "".join(f"{name} {one.atol:g} + {one.rtol:g} * |reference|\n" for name, one in sorted(found.items())),
    )


def statistic(shape: tuple[int, ...] | None = (4,), dtype: str | None = "float32", **values: float) -> DumpedValue:
    return DumpedValue(slot="0", shape=shape, dtype=dtype, statistics=values)


@pytest.mark.parametrize(
    ("eager", "graph", "agreement", "problem"),
    [
        (statistic(Max=1.0), statistic(Max=1.0), "statistics agree", None),
        (statistic(Max=math.nan), statistic(Max=math.nan), "statistics agree", None),
        (statistic(Max=math.inf), statistic(Max=math.inf), "statistics agree", None),
        (statistic(Max=1.0), statistic(Max=math.nan), "beyond", "result 0: Max is 1 in eager, nan in the graph"),
        (statistic(Max=1.0), statistic(Max=1.5), "beyond", "result 0: Max is 1 in eager, 1.5 in the graph"),
        (statistic(Max=-100.0), statistic(Max=-100.001), "statistics agree", None),
        (statistic(Max=1.0), statistic(Max=1.001, dtype="float16"), "statistics agree", None),
        (statistic(dtype=None, Max=1.0), statistic(dtype=None, Max=1.001), "beyond",
         "result 0: Max is 1 in eager, 1.001 in the graph"),
        (statistic(Max=1.0, Min=0.0), statistic(Max=1.0, Mean=9.0), "statistics agree", None),
        (statistic(Max=1.0), statistic(Min=1.0), "not dumped", None),
        (statistic(Max=1.0), statistic((2, 2), Max=1.0), "another shape",
         "result 0: [4] in eager, [2, 2] in the graph"),
        (statistic(Max=1.0), statistic(None, Max=1.0), "statistics agree", None),
        (statistic(None, Max=1.0), statistic(Max=1.0), "statistics agree", None),
    ],
)  # fmt: skip
def test_what_statistics_show(eager: DumpedValue, graph: DumpedValue, agreement: str, problem: str | None) -> None:
    found = accuracy._statistics(eager, graph, None, None)
    assert (found.agreement, found.problems) == (agreement, () if problem is None else (problem,))


@pytest.mark.parametrize(
    ("eager", "graph", "error"),
    [
        (statistic(Max=1.0, Min=-2.0), statistic(Max=1.5, Min=-1.75), 0.5),
        (statistic(Max=1.0, Min=-1.75), statistic(Max=1.25, Min=-2.5), 0.75),
        (statistic(Max=math.nan), statistic(Max=math.nan), 0.0),
        (statistic(Max=1.0), statistic(Max=math.nan), None),
        (statistic(Max=1.0, Min=0.0), statistic(Max=math.nan, Min=0.5), None),
        (statistic(Max=1.0, Min=0.0), statistic(Max=1.5, Min=math.inf), None),
        (statistic(Max=1.0), statistic((2, 2), Max=1.0), None),
        (statistic(Max=1.0), statistic(Min=1.0), 0.0),
    ],
)
def test_the_largest_difference_of_statistics_is_a_finite_number_or_none(
    eager: DumpedValue, graph: DumpedValue, error: float | None
) -> None:
    assert accuracy._statistics(eager, graph, None, None).error == error


def test_statistics_are_held_to_what_is_allowed_for_the_less_exact_dtype() -> None:
    asked: list[str] = []

    def allowed(kind: str) -> NumericTolerance:
        asked.append(kind)
        return NumericTolerance(rtol=0.5, atol=0.0)

    found = accuracy._statistics(statistic(Max=1.0), statistic(dtype="float16", Max=1.5), "bfloat16", allowed)
    assert (asked, found.agreement, found.tolerance) == (["bfloat16"], "statistics agree", NumericTolerance(0.5, 0.0))
    beyond = accuracy._statistics(statistic(Max=1.0), statistic(Max=1.75, Min=1.0), None, allowed)
    assert (beyond.agreement, beyond.error, asked[-1]) == ("beyond", 0.75, "float32")


def test_names_pair_and_what_has_another_number_of_calls_stays_alone() -> None:
    def op(name: str, operator: str) -> DumpedOperator:
        return DumpedOperator(name=name, operator=operator)

    found = paired([op("a", "aten.mm.default"), op("b", "aten.abs.default"), op("c", "aten.abs.default")],
                   [op("a", "mm"), op("d", "aten.abs.default"), op("c", "aten.neg.default")])  # fmt: skip
    assert [(one.name, other.name) for one, other in found.pairs] == [("a", "a")]
    assert found.by_name == 1
    assert [one.name for one in found.only_eager] == ["b", "c"]
    assert [one.name for one in found.only_graph] == ["d", "c"]


@pytest.mark.parametrize(
    ("eager", "graph", "said"),
    [
        ("mm", "msprobe", "have no operator in common"),
        ("empty", "mm", "is no dump that is read here"),
        ("above", "mm", "It has the folders"),
        ("log", "mm", "is no dump of an operator's tensors"),
        ("inputs", "inputs", "have no result of one operator in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    eager: str, graph: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torchair(tmp_path / "above" / "mm", step()[:1])
    torchair(tmp_path / "inputs", [("a", "aten.abs.default", [X], [])])
    msprobe(tmp_path / "msprobe", step()[2:])
    (tmp_path / "empty").mkdir()
    (tmp_path / "log").write_text("class G(torch.nn.Module):\n    a = torch.ops.aten.abs.default(b)\n")
    place = {"mm": tmp_path / "above" / "mm"}
    status, page = compared(capsys, *(place.get(name, tmp_path / name) for name in (eager, graph)))
    assert status == 2
    assert said in page


def test_a_folder_is_no_file_that_explain_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torchair(tmp_path / "eager", step())
    assert main(["explain", "--dump", str(tmp_path / "eager")]) == 2
    assert "npucompose compare-dumps EAGER GRAPH" in capsys.readouterr().err


def test_a_dump_of_torchairs_own_dumper_is_read(tmp_path: Path) -> None:
    """The names of its files, as `torchair/fx_dumper.py` of torch_npu 2.13.0 makes them, lists of tensors included."""
    for slot in ("INPUT.0.0", "INPUT.0.1", "INPUT.1", "OUTPUT.0"):
        np.save(tmp_path / f"cat-aten.cat.default.{slot}.20261125101500123456.npy", X)
    (found,) = read(tmp_path).tensors.operators  # type: ignore[union-attr]
    assert (found.name, found.operator) == ("cat", "aten.cat.default")
    assert ([one.slot for one in found.inputs], [one.slot for one in found.outputs]) == (["0.0", "0.1", "1"], ["0"])
