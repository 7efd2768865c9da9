"""`explain --capture` of an experiment: the page, what it refuses, what its options change."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from attrs import evolve
from rich.console import Console

from npucompose.cli.arguments import command_line
from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.console import prints_apart
from npucompose.errors import ConfigError
from npucompose.experiment import explain
from npucompose.experiment.stages.legality import LegalityStage
from npucompose.npu.capture import explanation as page
from npucompose.npu.capture.explanation import CaptureExplanation
from npucompose.npu.capture.records import CaptureLegality
from npucompose.table.structure import of_facts

MODELS = """
import os
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.ones(4)

    def forward(self, x):
        y = self.linear(x)
        if y.mean() > 0:
            y = y + 1
        print("a step")
        rows = torch.nonzero(y)
        return y * self.scale, rows

class Plain(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

class Gelu(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x * 2) + 1

class Prints(nn.Module):
    def forward(self, x):
        y = x * 2
        print("the sum is", y.sum())
        os.write(1, bytes("from below", "ascii") + bytes([10]))
        return y

class Imports(nn.Module):
    def forward(self, x):
        y = torch.nonzero(x)
        import no_such_package
        return y

class Streams(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        main, side = torch.npu.current_stream(), torch.npu.Stream()
        side.wait_stream(main)
        y = self.linear(x)
        with torch.npu.stream(side):
            z = y * 2
        w = z + 1
        main.wait_stream(side)
        del y
        with torch.npu.stream(side):
            v = z * 3
        z[0].zero_()
        u = torch.relu(x)
        main.wait_stream(side)
        return u + v + w

def streams(): return Streams(), {"x": torch.randn(4, 4)}
def imports(): return Imports(), {"x": torch.ones(4, 4)}
def block(): return Block(), {"x": torch.randn(4, 4)}
def gelu(): return Gelu(), {"x": torch.randn(4, 4)}
def plain(): return Plain(), {"x": torch.randn(4, 4)}
def prints(): return Prints(), {"x": torch.ones(4, 4)}
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CaptureExplanation]]:
    """`asked("block", "compile.fullgraph=false")`: the explanation, made in this process."""
    (tmp_path / "capture_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "capture_models", raising=False)

    def explained(name: str, *overrides: str) -> CaptureExplanation:
        chosen = ("model=python", f"model.factory=capture_models:{name}", "trust=true", "mode=reduce-overhead")
        return explain.captured(Session(check(compose([*chosen, *overrides]))))

    yield explained
    sys.modules.pop("capture_models", None)
    torch._dynamo.reset()


def printed(explanation: CaptureExplanation, columns: int = 120) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    page.render(evolve(explanation, trace_s=0.0, judge_s=0.0), console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_the_page_has_the_verdict_first_and_each_finding_with_line_code_and_fix(
    asked: Callable[..., CaptureExplanation], golden: Callable[[str, str], None]
) -> None:
    explanation = asked("block")
    golden("capture/block.txt", printed(explanation))
    narrow = printed(explanation, 26)
    assert all(label in narrow for label in ("  verdict", "  under", "107027", "no code"))


def test_a_model_that_is_captured_says_so_and_what_that_takes(
    asked: Callable[..., CaptureExplanation], golden: Callable[[str, str], None]
) -> None:
    golden("capture/plain.txt", printed(asked("plain")))


def test_a_race_is_shown_with_both_lines_the_tensor_and_the_wait_that_is_missing(
    asked: Callable[..., CaptureExplanation], golden: Callable[[str, str], None]
) -> None:
    explanation = asked("streams")
    assert explanation.capture.verdict == "captures with races"
    golden("capture/streams.txt", printed(explanation))


def test_what_a_model_prints_is_shown_as_its_own_and_never_among_the_answer(
    asked: Callable[..., CaptureExplanation], capfd: pytest.CaptureFixture[str]
) -> None:
    explanation = asked("prints")
    assert explanation.printed[:2] == ("the sum is tensor(32.)", "from below")
    assert capfd.readouterr().out == ""
    assert "  the model printed: the sum is tensor(32.)" in printed(explanation)
    assert next(one.rule for one in explanation.capture.findings) == "host_read"


def test_what_a_model_raises_ends_neither_the_call_nor_the_trace(asked: Callable[..., CaptureExplanation]) -> None:
    facts = asked("imports").capture
    assert [one.rule for one in facts.findings] == ["data_shape"]
    assert sum("no_such_package" in one for one in facts.evidence) == 2


def test_a_model_that_prints_much_is_cut_short() -> None:
    with prints_apart() as lines:
        print("\n".join(map(str, range(60))))
    assert lines[-2:] == ["49", "and 10 more lines"]


def test_sizes_that_fit_are_named_for_certain_and_at_best(asked: Callable[..., CaptureExplanation]) -> None:
    facts = asked("plain", "extensions.vllm.sizes=[1,8,64]").capture
    assert facts.budget is not None

    def fit(certain: tuple[int, ...], possible: tuple[int, ...]) -> str:
        assert facts.budget is not None
        shown = evolve(facts, budget=evolve(facts.budget, certain=certain, possible=possible))
        return dict(page.budget_lines(shown))["fit"]

    assert fit((1, 8, 64), (1, 8, 64)) == "all, whatever is unknown"
    assert fit((64,), (1, 64)) == "for certain 64; at best 1, 64; of 3"
    assert fit((), (64,)) == "for certain none; at best 64; of 3"
    assert fit((), ()) == "for certain none; at best none; of 3"


def test_between_captures_a_read_by_the_host_is_legal(asked: Callable[..., CaptureExplanation]) -> None:
    facts = asked("block", "compile.fullgraph=false").capture
    assert {(one.rule, one.outside) for one in facts.findings} == {
        ("host_read", True), ("data_shape", True), ("graph_break", True), ("host_tensor", False),
    }  # fmt: skip
    assert facts.judged_under["compile.fullgraph"] == "false"


def test_the_stage_writes_down_the_same(asked: Callable[..., CaptureExplanation]) -> None:
    expected = asked("block").capture
    chosen = ("model=python", "model.factory=capture_models:block", "trust=true", "pipeline=legality")
    facts = LegalityStage().run(Session(check(compose(chosen))), lambda _: None)
    found = of_facts(CaptureLegality, facts["legality"], where="facts")
    assert found.findings == expected.findings
    assert (found.verdict, found.judged_under) == (expected.verdict, expected.judged_under)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--capture", "--adapt"], "one of --options, --adapt and --capture"),
        (["--capture", "--log", "x"], "--log and --dump have no meaning there"),
        (["--capture", "mode=max-autotune"], "mode=max-autotune captures nothing. Modes that capture: reduce-overhead"),
    ],
)
def test_what_has_no_capture_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        explain.act(command_line("explain").parse_args(["explain", *words]))


def test_an_operator_that_only_the_in_place_pass_writes_does_not_capture_and_is_named_with_the_option(
    asked: Callable[..., CaptureExplanation],
) -> None:
    option, old = "compiler.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true", "2.6.0.post5"
    facts = asked("gelu", f"compiler.torch_npu_version={old}").capture
    assert (facts.verdict, facts.certainty) == ("does not capture", "derived")
    assert [(one.rule, one.fix.partition("  #")[0]) for one in facts.findings] == [("cpu_kernel", option)]
    assert asked("gelu", f"compiler.torch_npu_version={old}", option).capture.verdict == "captures"
    assert asked("gelu").capture.verdict == "captures"
