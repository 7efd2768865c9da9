"""How sure a verdict is, what only a graph shows, and what no public rule decides."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from npucompose.errors import ConfigError
from npucompose.npu.capture.codes import error_codes
from npucompose.npu.capture.legality import CaptureQuestion, Seen, judge
from npucompose.npu.capture.reading import read
from npucompose.npu.capture.rules import CAPTURE_MODES, CaptureRule, rules
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from tests.capture.programs import programs
from tests.capture.seeded import captured
from tests.capture.test_capture_legality import PrintsText
from tests.docs.blocks import ROOT


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such adapter")


class Unsure(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.set_dump("dump.json")
        return x * 2


class ItemAndUnsure(Unsure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * x.sum().item()


def test_a_model_that_raises_has_no_verdict() -> None:
    facts = captured(Raises)
    assert (facts.verdict, facts.certainty, facts.tasks) == ("unknown", "unknown", None)
    assert "KeyError at" in facts.evidence[-1]
    assert "no such adapter" in facts.evidence[-1]


def test_what_no_public_rule_decides_is_unknown() -> None:
    facts = captured(Unsure)
    (found,) = facts.findings
    assert (facts.verdict, found.rule, found.standing) == ("unknown", "unknown_call", "unknown")


def test_what_is_refused_counts_more_than_what_is_unknown() -> None:
    facts = captured(ItemAndUnsure)
    assert [one.rule for one in facts.findings] == ["unknown_call", "host_read"]
    assert (facts.verdict, facts.certainty) == ("does not capture", "proven")


def test_a_rule_holds_in_its_modes_and_versions() -> None:
    assert rules().of("outside_copy").modes == ("global", "thread_local")
    assert rules().of("other_thread").modes == ("global",)
    assert rules().of("sync_copy").modes == CAPTURE_MODES
    unknown = rules().of("generator_unknown")
    assert [unknown.holds(version) for version in ("2.9.0.post6", "2.11.0.post3", "2.13.0", "2.14.0")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [rules().of("branch_open").holds(version) for version in ("2.11.0.post3", "2.13.0")] == [
        False,
        True,
    ]


def test_a_cut_is_legal_where_pieces_are_captured() -> None:
    whole = captured(PrintsText, traced=True)
    pieces = captured(PrintsText, traced=True, fullgraph=False)
    assert [one.outside for one in (*whole.findings, *pieces.findings)] == [False, True]
    assert (whole.verdict, pieces.verdict) == ("does not capture", "captures")


def test_counts_of_the_simulated_capture_are_told() -> None:
    facts = captured(programs()["joined_through_another"].made)
    assert (facts.streams, facts.tasks) == (3, 3)
    assert facts.evidence == ("the simulated capture took 3 tasks on 3 streams",)


def test_a_runtime_that_refuses_nothing_finds_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the findings come of refusals, not of the programs' names."""
    monkeypatch.setattr(CaptureRuntime, "refuse", lambda *_, **__: None)
    verdicts = {one.name: captured(one.made, capture_mode=one.mode).verdict for one in programs().values()}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "captures"} == {}


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
        (((ATEN.quantize_per_channel.default, (torch.ones(4), torch.zeros(4), 0, torch.quint8)),), "sync_copy", 107027),
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


def test_the_page_has_every_rule_with_its_codes_modes_and_versions() -> None:
    text = (ROOT / "docs" / "capture.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- rules -->")[2].partition("<!-- end -->")[0].strip().splitlines()[2:]
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    rows = {name: (codes, holds) for name, codes, _, holds in cells}
    assert {name: rows.get(name) for name in rules().rules} == {
        name: (", ".join(str(code) for code in (rule.code, *rule.also) if code), _holds(rule))
        for name, rule in rules().rules.items()
    }
    assert rows.keys() == rules().rules.keys()


def _holds(rule: CaptureRule) -> str:
    modes = "" if rule.modes == CAPTURE_MODES else ", ".join(rule.modes)
    since = "" if rule.since is None else f"from torch_npu {rule.since}"
    until = "" if rule.until is None else f"before torch_npu {rule.until}"
    return "; ".join(filter(None, (modes, since, until)))


def test_the_codes_are_the_runtimes() -> None:
    public = error_codes().codes
    assert {code for rule in rules().rules.values() for code in (rule.code, *rule.also) if code is not None} <= set(
        public
    )
    assert {rules().of(name).code for name in ("pageable_copy", "border_event", "event_wait", "sync_copy")} == {
        107000, 107024, 107028, 107027,
    }  # fmt: skip


def test_an_unknown_rule_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"unknown capture rule 'host_reed'. Did you mean 'host_read'"):
        rules().of("host_reed")
