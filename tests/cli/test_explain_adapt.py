"""npucompose explain --adapt: a dry run of the rules as a diff; nothing is run and nothing is left behind."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from npucompose.cli import main
from npucompose.report.explain import render_dry_run
from npucompose.results.graphs import Adaptation, DryRun
from npucompose.table.structure import of_facts

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_rule_is_told_with_what_it_would_put_in_its_contract_and_the_line(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["explain", "--adapt", "--json", "experiment=adapt_nll_loss"]) == 0
    found = of_facts(DryRun, json.loads(capsys.readouterr().out), where="dry run")
    first, second = found.adaptations
    assert (first.rule, first.kind, first.rtol, first.range_check) == ("nll_loss_double", "cast_around", 1e-5, True)
    assert first.before == "nll_loss: (f64[], f64[]) = paddle.nll_loss.default(arg0_1, arg1_1, arange)"
    assert sum("aten._to_copy.default" in text for text in first.after) == 4
    assert "return torch.ops.paddle.nll_loss(x, label, weight)" in first.source
    assert second.before in first.after  # what one rule made, the next one takes
    assert (second.rule, second.rtol, second.atol) == ("nll_loss", 0, 0)
    assert (found.graphs, found.asked["adapt"]) == (1, "paddle")
    assert list(elsewhere.iterdir()) == []


def test_a_rejected_node_is_told_with_its_reason_and_ends_as_the_run_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--adapt", "experiment=adapt_reject"]) == 3
    told = capsys.readouterr().out
    assert "- pool2d: f32[4, 16, 16, 8] = paddle.pool2d.default(" in told
    assert "is rejected by adapt rule 'pool2d_ceil_mode': ceil_mode is not supported: pad the input instead" in told
    assert told.endswith("1 graph · 0 nodes adapted · 1 rejected\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=add"], "adapt=none has no rules; choose a rule set"),
        (["adapt=paddle", "--log", "run.log"], "--log and --dump have no meaning there"),
        (["adapt=paddle", "mode=eager", "strict=off"], "mode=eager compiles nothing"),
    ],
)
def test_what_cannot_be_tried_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--adapt", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_it_reads_as_a_diff() -> None:
    applied = Adaptation(
        graph="graph_0", rule="relu_grad", kind="fill_args", op="paddle.relu_grad.default", node="relu_grad",
        source="m.py:7: return relu_grad(out, dout)", before="relu_grad = old(out, dout)", after=("new = new(dout)",),
    )  # fmt: skip
    found = DryRun(asked={"model": "m"}, graphs=1, adaptations=(applied,), untouched=("pool = old(x)",), compiler="no.")
    console = Console(record=True, width=40, file=io.StringIO())
    render_dry_run(found, console)
    assert console.export_text().splitlines() == [
        "m",
        "@@ graph_0 relu_grad @@ rule relu_grad (fill_args) · every bit · m.py:7: return relu_grad(out, dout)",
        "- relu_grad = old(out, dout)",
        "+ new = new(dout)",
        "  no rule holds for pool = old(x)",
        "the compiler then says: no.",
        "1 graph · 1 node adapted · 0 rejected · 1 left as they are",
    ]
