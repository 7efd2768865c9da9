"""The mistakes that engineers make, each explained with the right step, the argument and the line that mends it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from npucompose.errors import ConfigError
from tests.sinking.asked import asked, problems, step

FA = ("model=attention_decode", "shapes=dynamic")
MARKED = (*FA, "shapes.mark_static=[query,key,value]")
MODELS = """
import torch
from torch import nn

class View(nn.Module):
    def forward(self, x, n: int):
        return x.view(n, -1) * 2

class Scaled(nn.Module):
    def forward(self, x, n: int):
        return x * n

class Nonzero(nn.Module):
    def forward(self, x):
        y = x + 1
        return torch.nonzero(y)

class Breaking(nn.Module):
    def forward(self, x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1

class Lengths(nn.Module):
    def forward(self, x, lens: list[int]):
        return torch.ops.sinking_test.by_length(x, lens) + 1

def view(): return View(), {"x": torch.randn(4, 8), "n": 2}
def scaled(): return Scaled(), {"x": torch.randn(4, 8), "n": 4}
def nonzero(): return Nonzero(), {"x": torch.randn(4, 8)}
def breaking(): return Breaking(), {"x": torch.randn(4, 8)}
def branching(): return Branching(), {"x": torch.randn(4, 8)}
def lengths(): return Lengths(), {"x": torch.randn(4, 8), "lens": [3, 5]}
"""
LIBRARIES: list[torch.library.Library] = []


@pytest.fixture(scope="module", autouse=True)
def by_length() -> None:
    """An operator of somebody else, which is given lengths."""
    library = torch.library.Library("sinking_test", "DEF")
    LIBRARIES.append(library)
    library.define("by_length(Tensor x, SymInt[] lens) -> Tensor")
    library.impl("by_length", lambda x, lens: x * len(lens), "CompositeExplicitAutograd")
    library.impl("by_length", lambda x, lens: torch.empty_like(x), "Meta")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[str, ...]]]:
    """`made("view")` are the overrides that choose the model view() of a module in the working directory."""
    (tmp_path / "mistakes.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mistakes", raising=False)
    yield lambda name: ("model=python", f"model.factory=mistakes:{name}", "trust=true", "shapes=dynamic")
    sys.modules.pop("mistakes", None)


def test_one_tensor_of_many_is_not_marked() -> None:
    facts = asked(*FA, "shapes.mark_static=[query,value]", "tiling=sink")
    assert (facts.path, facts.ge_build) == (2, "dynamic")
    found = step(facts, "S2")
    assert found.status == "problem"
    assert all(line.startswith("key: dimension ") for line in found.evidence)
    assert found.fix == "shapes.mark_static=[query,value,key]  # in Python: torch._dynamo.mark_static(key)"
    first = facts.blame[0]
    assert (first.argument, first.operator, first.rule) == ("key", "placeholder", "rule 3")
    assert (first.dimension, first.symbol) != (None, None)
    assert step(facts, "S4").status == "ok"


def test_tiling_sink_is_off() -> None:
    facts = asked(*MARKED)
    assert facts.path == 3
    found = step(facts, "S4")
    assert found.status == "problem"
    assert "actual_seq_lengths_kv, which is not a constant, and tiling sink is off" in found.evidence[0]
    assert found.fix is not None
    assert found.fix.startswith("tiling=sink  # in Python: config.experimental_config.tiling_schedule_optimize = True")
    (blame,) = facts.blame
    assert (blame.argument, blame.rule) == ("actual_seq_lengths_kv", "rule 5")
    assert blame.source is not None
    assert blame.source.startswith("decoders.py:")
    assert problems(facts) == ["S0", "S4", "S5"]


def test_lengths_change_under_static_shapes() -> None:
    facts = asked("model=attention_decode", "shapes=static", "model.sequence=[{actual_seq_lengths_kv:[80,81]}]")
    assert (facts.path, facts.ge_build) == (1, "static")
    found = step(facts, "S7")
    assert found.status == "problem"
    assert "actual_seq_lengths_kv changes its value from [64, 65] to [80, 81] in call 1" in found.evidence[0]
    assert "one compilation for each value" in found.evidence[0]
    assert found.fix is not None
    assert found.fix.startswith("shapes=dynamic shapes.mark_static=[query,key,value]")
    assert problems(facts) == ["S7"]


@pytest.mark.slow
def test_the_mended_line_really_mends_it() -> None:
    """The fix of every seeded mistake on the way to path 4, applied one after the other."""
    overrides: list[str] = [
        "model=attention_decode",
        "shapes=static",
        "model.sequence=[{actual_seq_lengths_kv:[80,81]}]",
    ]
    found = asked(*overrides)
    for step_id, path in (("S7", 3), ("S4", 4)):
        fix = step(found, step_id).fix
        assert fix is not None
        overrides += fix.partition("  #")[0].split()
        found = asked(*overrides)
        assert found.path == path
    assert problems(found) == []


def test_sink_under_a_mode_that_captures_is_refused() -> None:
    words = r"tiling_schedule_optimize=true \(conf/tiling/sink.yaml, .*\) has no effect in mode=reduce-overhead"
    with pytest.raises(ConfigError, match=words):
        asked(*MARKED, "tiling=sink", on=("target=cpu", "mode=reduce-overhead"))


def test_a_number_reaches_a_view(made: Callable[[str], tuple[str, ...]]) -> None:
    facts = asked(*made("view"), "shapes.mark_static=[x]")
    assert (facts.ge_graph, facts.ge_build) == ("static", "dynamic")
    found = step(facts, "S3")
    assert found.status == "problem"
    assert found.evidence[0].startswith(
        "view (aten.view.default): n sets a size of its result (mistakes.py:7 in forward"
    )
    assert found.fix == "give aten.view.default a size that is not an argument: a constant of the module instead of n"
    assert (facts.blame[0].operator, facts.blame[0].argument, facts.blame[0].rule) == (
        "aten.view.default",
        "n",
        "rule 3",
    )


def test_a_number_that_is_only_multiplied_with_is_no_mistake(made: Callable[[str], tuple[str, ...]]) -> None:
    facts = asked(*made("scaled"), "shapes.mark_static=[x]")
    assert (facts.fx_graph, facts.ge_graph, facts.ge_build) == ("dynamic", "static", "static")
    assert problems(facts) == []


def test_a_nonzero(made: Callable[[str], tuple[str, ...]]) -> None:
    facts = asked(*made("nonzero"), "shapes.mark_static=[x]")
    assert (facts.ge_graph, facts.ge_build, facts.certainty["ge_build"]) == ("failed", "failed", "derived")
    found = step(facts, "S3")
    assert found.status == "problem"
    assert found.evidence[0].startswith("nonzero (aten.nonzero.default): u0 sets a size of its result (mistakes.py:16")
    assert found.fix == "torch.where(condition, a, b)  # the size of its result is that of its inputs"
    blame = facts.blame[0]
    assert (blame.operator, blame.rule) == ("aten.nonzero.default", "rule 11")
    assert (blame.source or "").startswith("mistakes.py:16 in forward")


def test_a_branch_on_a_value(made: Callable[[str], tuple[str, ...]]) -> None:
    facts = asked(*made("branching"), "shapes.mark_static=[x]")
    assert (facts.fx_graph, facts.ge_build, facts.path) == ("unknown", "unknown", None)
    assert problems(facts) == ["S3"]
    found = step(facts, "S3").evidence[0]
    assert "at mistakes.py:26 in forward, `if x.sum() > 0:`: Data-dependent branching" in found


def test_a_gear_below_two_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'key\.2' takes 2 to 100 sizes of at least 2 .*given \[1, 128\]"):
        asked(*FA, "+shapes.gears={key.2:[1,128]}")


def test_an_operator_without_sink_support(made: Callable[[str], tuple[str, ...]]) -> None:
    rows = (
        "+sinking.operators={sinking_test.by_length: {ge: ByLength, slots: [lens], sinks: false, source: its manual}}"
    )
    facts = asked(*made("lengths"), "shapes.mark_static=[x]", "tiling=sink", rows)
    assert (facts.path, facts.ge_graph, facts.ge_build) == (5, "static", "dynamic")
    found = step(facts, "S4")
    assert found.status == "problem"
    assert (
        "its tiling reads lens, which is not a constant, and has no version for the device: its manual"
        in found.evidence[0]
    )
    assert found.fix is not None
    assert found.fix.startswith("use npu_fused_infer_attention_score")


def test_an_operator_that_nobody_knows_is_unknown_until_a_row_says_more(made: Callable[[str], tuple[str, ...]]) -> None:
    known = (*made("lengths"), "shapes.mark_static=[x]", "tiling=sink")
    facts = asked(*known)
    assert (facts.path, facts.ge_build, facts.certainty["ge_build"]) == (None, "unknown", "unknown")
    assert [step(facts, s).status for s in ("S4", "S8")] == ["unknown", "unknown"]
    assert (step(facts, "S4").fix or "").startswith("+sinking.operators={sinking_test.by_length: ")
    row = "{ge: ByLength, slots: [lens], sinks: true, source: its manual}"
    facts = asked(*known, f"+sinking.operators={{sinking_test.by_length: {row}}}")
    assert (facts.path, facts.ge_build) == (4, "static")


@pytest.mark.parametrize(("soc", "path"), [("ascend310p", 5), ("ascend910", 5), ("Ascend910B3", 4), ("a3", 4)])
def test_a_product_without_tiling_on_the_device(soc: str, path: int) -> None:
    facts = asked(*MARKED, "tiling=sink", f"target.soc={soc}")
    assert facts.path == path
    if path == 5:
        found = step(facts, "S4")
        assert found.status == "problem"
        assert f"{soc} cannot compute it on the device" in found.evidence[0]
        assert found.fix == "target.soc=ascend910b  # products with tiling sink: ascend910b, ascend910_93"


def test_a_product_that_is_not_named_leaves_the_build_unknown() -> None:
    facts = asked(*MARKED, "tiling=sink", "target.soc=null")
    assert (facts.path, facts.ge_graph, facts.ge_build) == (None, "static", "unknown")
    found = step(facts, "S4")
    assert found.status == "unknown"
    assert found.fix is not None
    assert found.fix.startswith("target.soc=ascend910b")


def test_a_product_that_nobody_sells_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown product 'ascend910z' @ target\.soc"):
        asked(*MARKED, "target.soc=ascend910z")


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_graph_break(made: Callable[[str], tuple[str, ...]], fullgraph: bool) -> None:
    facts = asked(*made("breaking"), "shapes.mark_static=[x]", f"compile.fullgraph={str(fullgraph).lower()}")
    found = step(facts, "S1")
    assert found.status == "problem"
    if fullgraph:
        assert "mistakes.py:21 in forward, `torch._dynamo.graph_break()`" in found.evidence[0]
        assert found.fix is not None
        assert found.fix.startswith("move what breaks the graph out of forward()")
    else:
        assert "Call to `torch._dynamo.graph_break()`" in found.evidence[-1]
        assert found.fix is not None
        assert found.fix.startswith("compile.fullgraph=true")


def test_a_model_without_a_break_has_no_such_problem_after_one_that_had(made: Callable[[str], tuple[str, ...]]) -> None:
    asked(*made("breaking"), "shapes.mark_static=[x]", "compile.fullgraph=false")
    facts = asked(*made("scaled"), "shapes.mark_static=[x]", "compile.fullgraph=false")
    assert step(facts, "S1").status == "ok"
