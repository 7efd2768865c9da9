"""How sure a verdict is, what only a graph shows, and what no public rule decides."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from npucompose.capture import CaptureQuestion, CaptureRuntime, Seen, judge, rules
from npucompose.capture.reading import read
from npucompose.capture.rules import FILE
from npucompose.errors import ConfigError
from npucompose.input_safety import load_yaml
from tests.capture import host_models, stream_models
from tests.capture.copy_models import Cpu
from tests.capture.seeded import FAULTS, captured


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such adapter")


class MaskWritten(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[x > 0] = x[:1, :1].expand(4, 4).reshape(-1)[:10]
        return y


class Callback(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu._launch_host_func(torch.npu.current_stream(), print, None)
        return x * 2


class ItemAndCallback(Callback):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * x.sum().item()


def test_a_model_that_raises_has_no_verdict() -> None:
    facts = captured(Raises)
    assert (facts.verdict, facts.certainty, facts.tasks) == ("unknown", "unknown", None)
    assert "KeyError at" in facts.evidence[-1]
    assert "no such adapter" in facts.evidence[-1]


@pytest.mark.parametrize(("model", "rule"), [(Callback, "host_callback"), (MaskWritten, "data_shape")])
def test_what_no_public_rule_decides_is_unknown(model: type[nn.Module], rule: str) -> None:
    facts = captured(model)
    (found,) = facts.findings
    assert (facts.verdict, found.rule, found.standing) == ("unknown", rule, "unknown")


def test_what_is_refused_counts_more_than_what_is_unknown() -> None:
    facts = captured(ItemAndCallback)
    assert [one.rule for one in facts.findings] == ["host_callback", "host_read"]
    assert (facts.verdict, facts.certainty) == ("does not capture", "proven")


def test_relaxed_mode_lets_a_copy_through_and_nobody_vouches_for_it() -> None:
    facts = captured(Cpu, capture_mode="relaxed")
    (found,) = facts.findings
    assert (facts.verdict, found.rule, found.standing) == ("unknown", "sync_copy", "unknown")
    assert "done once, at capture" in found.what
    assert captured(Cpu, capture_mode="thread_local").verdict == "does not capture"


def test_a_cut_is_legal_where_pieces_are_captured() -> None:
    whole = captured(host_models.PrintsText, traced=True)
    pieces = captured(host_models.PrintsText, traced=True, fullgraph=False)
    assert [one.outside for one in (*whole.findings, *pieces.findings)] == [False, True]
    assert (whole.verdict, pieces.verdict) == ("does not capture", "captures")


def test_counts_of_the_simulated_capture_are_told() -> None:
    facts = captured(stream_models.JoinedThroughAnother)
    assert (facts.streams, facts.tasks) == (3, 3)
    assert facts.evidence == ("the simulated capture took 3 tasks on 3 streams",)


def test_a_runtime_that_refuses_nothing_finds_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the findings come of refusals and of torch.compile, not of the models' names."""
    monkeypatch.setattr(CaptureRuntime, "refuse", lambda *_, **__: None)
    found = {one.model.__name__: captured(one.model, **one.options).verdict for one in FAULTS if not one.traced}
    assert set(found.values()) == {"captures"}


# What a graph shows.


def _graph(*calls: tuple[object, tuple[object, ...]]) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 4)
    last = x
    for target, args in calls:
        last = graph.call_function(target, (last, *args))  # type: ignore[arg-type]
        last.meta["val"] = torch.empty(4)
        last.meta["stack_trace"] = '  File "/m/model.py", line 7, in forward\n    y = f(x)\n'
    graph.output(last)
    return graph


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("calls", "rule", "code"),
    [
        (((ATEN._local_scalar_dense.default, ()),), "host_read", 107027),
        (((ATEN.nonzero.default, ()),), "data_shape", 107027),
        (((ATEN.masked_select.default, (None,)),), "data_shape", 107027),
        (((ATEN.resize_.default, ([8],)),), "moves_memory", None),
        (((torch.ops._c10d_functional.all_reduce.default, ("sum", "0")),), "unjoined_collective", 107025),
    ],
)
def test_a_node_is_found_with_its_line(calls: tuple[tuple[object, tuple[object, ...]], ...], rule: str,
                                       code: int | None) -> None:  # fmt: skip
    (found,) = read(_graph(*calls), "graph_0")
    assert (found.rule, found.code, found.standing, found.graph) == (rule, code, "derived", "graph_0")
    assert found.source == "model.py:7 in forward: y = f(x)"
    assert found.node is not None
    facts = judge(CaptureQuestion(mode="npugraph_ex", target="cpu"), Seen(runtime=CaptureRuntime(), graphs=(found,)))
    assert (facts.verdict, facts.certainty) == ("does not capture", "derived")


def test_a_collective_that_is_waited_for_is_legal() -> None:
    functional = torch.ops._c10d_functional
    graph = _graph((functional.all_reduce.default, ("sum", "0")), (functional.wait_tensor.default, ()))
    assert list(read(graph, "graph_0")) == []


def test_memory_whose_size_data_decide_is_found_in_a_graph() -> None:
    class Allocates(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            length = x.sum().long().item()
            torch._check(length >= 0)
            return torch.zeros(length)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        graph = torch.export.export(Allocates(), (torch.ones(4),)).graph_module.graph
    found = [one.rule for one in read(graph, "graph_0")]
    assert found == ["host_read", "data_memory"]


# The table.


def test_every_rule_names_its_fix_and_source() -> None:
    for name, rule in rules().rules.items():
        assert rule.forbids, name
        assert rule.fix, name
        assert rule.sources, name


def test_every_rule_that_a_model_can_break_is_seeded() -> None:
    not_of_models = {
        "wrong_thread", "host_callback", "opaque", "data_memory", "streams_exhausted",
        "memory_exhausted",
    }  # fmt: skip
    assert {one.rule for one in FAULTS} == set(rules().rules) - not_of_models


def test_the_codes_are_the_runtimes() -> None:
    codes = {row.get("code") for row in load_yaml(FILE)["rules"].values()} - {None}
    assert codes == {107025, 107027, 107029, 107030, 107031, 107032, 107033, 107036, 107038, 207005, 207008}


def test_an_unknown_rule_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"unknown capture rule 'host_reed'. Did you mean 'host_read'"):
        rules().of("host_reed")
