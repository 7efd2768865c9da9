"""Library use: what a notebook does."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import npucompose
from npucompose.errors import CaptureError, CompileError, ConfigError, SignatureError


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight) + torch.abs(x)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, npucompose, npucompose.schema, npucompose.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_compiled_model_is_called_as_the_model_itself_and_can_be_detached() -> None:
    model = Small().eval()
    fast = npucompose.compile(model, "mode=reduce-overhead", "passes=stream_plan")
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(fast(x), model(x))
    replay = fast.detach(x)
    assert torch.equal(replay(y), model(y))
    assert len(fast.materialised.backend.compilations) == 1
    with pytest.raises(SignatureError, match=r"float32\[3,4\].*float32\[5,4\]"):
        replay(torch.randn(5, 4))


def test_materialize_gives_config_backend_pipelines_keywords_effective_and_provenance() -> None:
    made = npucompose.materialize(
        "mode=max-autotune", "tiling=sink", "passes=[cse,stream_plan]", "passes.stream_plan.stage=post", "strict=off",
        "shapes=dynamic",
    )  # fmt: skip
    path = "experimental_config.tiling_schedule_optimize"
    assert made.config[path] is True
    assert made.config.changed() == {path: True}
    assert [label for label, _ in made.pre.passes] == ["cse"]
    assert [label for label, _ in made.post.passes] == ["stream_plan"]
    assert made.compile_keywords == {"fullgraph": True, "dynamic": True}
    assert {e.option for e in made.effective} == {f"compiler.{path}", "passes.stream_plan"}
    assert made.provenance["passes.stream_plan.stage"] == "command line"
    assert made.provenance["benchmark.warmup"] == "default"
    assert all("." not in name or name.split(".")[1] != "values" for name in made.provenance)


def test_a_choice_that_has_no_meaning_for_a_model_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model=add.*has no meaning"):
        npucompose.compile(Small(), "model=add")


def test_the_backend_is_found_by_torch_under_its_name() -> None:
    model = Small().eval()
    compiled = torch.compile(model, backend="npucompose", options={"mode": "reduce-overhead", "passes": ["cse"]})
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


def test_max_autotune_trains() -> None:
    model = nn.Linear(4, 2)
    fast = npucompose.compile(model, "mode=max-autotune")
    x = torch.randn(3, 4)
    fast(x).sum().backward()
    got = model.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(got, model.weight.grad)


def test_inputs_that_require_grad_are_refused_where_nothing_may_run_beside_a_recording() -> None:
    fast = npucompose.compile(Small().eval(), "mode=reduce-overhead", "compile.partial=refuse")
    with pytest.raises(CaptureError, match="requires grad"):
        fast(torch.randn(2, 4, requires_grad=True))


def looks_at_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * x.argmax().item()


def finds_nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x) + 1


@pytest.mark.parametrize(
    ("function", "operator", "line"),
    [
        (looks_at_a_value, "_local_scalar_dense", "x.argmax().item()"),
        (finds_nonzero, "nonzero", "torch.nonzero(x) + 1"),
    ],
)
def test_control_that_depends_on_data_is_refused_where_nothing_may_be_cut(
    function: object, operator: str, line: str
) -> None:
    fast = npucompose.compile(function, "mode=reduce-overhead", "compile.partial=refuse")  # type: ignore[arg-type]
    with pytest.raises((CaptureError, CompileError)) as caught:
        fast(torch.randn(4))
    assert operator in str(caught.value)
    assert line in str(caught.value)
    assert "test_api.py" in str(caught.value)


def test_another_signature_is_an_error_or_a_capture_as_asked_for() -> None:
    model = Small().eval()
    fast = npucompose.compile(model, "mode=reduce-overhead", "shapes=dynamic", "target.when_full=replace")
    with torch.no_grad():
        handle, each = fast.detach(torch.randn(2, 4)), fast.recapturing()
        with pytest.raises(SignatureError, match=r"captured for .*\[2,4\].* got .*\[3,4\]"):
            handle(torch.randn(3, 4))
        for rows, handles in ((2, 1), (3, 2), (2, 2), (3, 2), (4, 3), (2, 3)):
            x = torch.randn(rows, 4)
            assert torch.equal(each(x), model(x))
            assert len(each.handles) == handles
        used = each.handles[-1]
        assert torch.equal(used(x), model(x))
    x = torch.randn(2, 4, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="requires grad"):
        each(x).sum().backward()
    assert x.grad is not None
    assert len(each.handles) == 3


def test_a_model_with_state_runs_once_a_call_while_its_signatures_are_captured() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    model = Counter().eval()
    each = npucompose.compile(model, "mode=reduce-overhead", "shapes=static").recapturing()
    with torch.no_grad():
        for call, rows in enumerate((2, 2, 3, 2, 3, 3, 2), start=1):
            assert torch.equal(each(torch.ones(rows)), torch.full((rows,), float(call)))
            assert model.count == call
    assert len(each.handles) == 2


def test_handles_beyond_the_capture_limit_go_the_one_used_longest_ago_first() -> None:
    model = Small().eval()
    limit = "compiler.debug.aclgraph.static_capture_size_limit=2"
    fast = npucompose.compile(model, "mode=reduce-overhead", "shapes=dynamic", "target.when_full=replace", limit)
    each = fast.recapturing()
    with torch.no_grad():
        for rows in (2, 2, 3, 2, 4, 2, 3):
            x = torch.randn(rows, 4)
            assert torch.equal(each(x), model(x))
        two, three = torch.randn(2, 4), torch.randn(3, 4)
        assert len(each.handles) == 2
        assert torch.equal(each.handles[0](two), model(two))
        assert torch.equal(each.handles[1](three), model(three))


def test_after_the_capture_limit_one_warning_and_eager() -> None:
    fast = npucompose.compile(
        Small().eval(),
        "mode=reduce-overhead",
        "shapes=dynamic",
        "compiler.debug.aclgraph.static_capture_size_limit=2",
    )
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (2, 3, 4, 5):
            x = torch.randn(rows, 4)
            assert torch.equal(fast(x), fast.model(x))
    assert len([w for w in caught if "capture_limit=2" in str(w.message)]) == 1
    (compilation,) = fast.materialised.backend.compilations
    assert compilation.lowered is not None
    assert len(compilation.lowered.captured) == 2


def test_outputs_are_static_buffers_unless_clones_are_asked_for() -> None:
    model = Small().eval()
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    with torch.no_grad():
        replay = npucompose.compile(model, "mode=reduce-overhead").detach(x)
        first = replay(x)
        replay(y)
        assert torch.equal(first, model(y))
        torch._dynamo.reset()
        cloning = npucompose.compile(
            model, "mode=reduce-overhead", "compiler.debug.aclgraph.enable_output_clone=true"
        ).detach(x)
        first = cloning(x)
        cloning(y)
        assert torch.equal(first, model(x))


def test_a_dimension_marked_dynamic_that_the_model_fixes_is_told_in_a_sentence() -> None:
    fast = npucompose.compile(lambda x: x.view(2, 3) + 1, "mode=reduce-overhead", "shapes=auto")
    x = torch.randn(6)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad(), pytest.raises(CompileError, match=r"shapes\.mark_dynamic cannot hold: .*marked"):
        fast(x)


def test_further_graphs_of_a_function_with_breaks_compose_nothing(monkeypatch: pytest.MonkeyPatch):
    from npucompose.compose import tree

    composed: list[object] = []
    made = tree._Combination.of  # private: how often it is composed anew is no result
    # private: how often it is composed anew is no result
    monkeypatch.setattr(tree._Combination, "of", lambda *args: composed.append(args) or made(*args))

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        x = x + 1
        torch._dynamo.graph_break()
        return x - 3

    monkeypatch.setattr(tree, "_own", threading.local())  # private: as in another thread
    for executor in ("portable", "portable", "native"):
        torch._dynamo.reset()
        options = {"target.executor": executor}
        assert torch.equal(torch.compile(broken, backend="npucompose", options=options)(torch.ones(2)), torch.zeros(2))
    assert len(composed) == 1
