"""The stage `padding`: eager and compiled, rows of the inputs, what a report and an expectation say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job
from npucompose.experiment.stages.padding import PaddingStage
from npucompose.models.base import Built, inference
from npucompose.results.measured import PaddingFacts
from npucompose.table.structure import of_facts

CHOSEN = ("model=mlp", "mode=eager", "pipeline=padding")


class Centred(nn.Module):
    """[8, 6], [8, 3], [2] -> [8, 6]: a row less the mean of all."""

    def __init__(self, centred: bool = True) -> None:
        super().__init__()
        self.linear, self.centred = nn.Linear(6, 6), centred

    def forward(self, x: Tensor, other: Tensor, scale: Tensor) -> Tensor:
        y = self.linear(x) * other[:, :1]
        return (y - y.mean(0) if self.centred else y) * scale[0]


def session(*overrides: str, centred: bool = True) -> Session:
    torch.manual_seed(0)
    made = Centred(centred)
    live = Session(checked([*CHOSEN, *overrides]))

    def inputs(step: int) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(step)
        return {
            name: torch.rand(*shape, generator=g) for name, shape in (("x", (8, 6)), ("other", (8, 3)), ("scale", (2,)))
        }

    live.built = Built(module=inference(made), inputs=inputs)
    return live


def found(live: Session) -> PaddingFacts:
    progress: list[float] = []
    facts = dict(PaddingStage().run(live, progress.append))
    assert progress == sorted(progress)
    assert max(progress) <= 1
    return of_facts(PaddingFacts, facts["padding"], where="padding")


def test_the_model_is_at_last_as_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []
    monkeypatch.setattr(Session, "rewind", lambda _: acts.append("rewind"))
    monkeypatch.setattr("npucompose.measure.padding.readers", lambda *_: acts.append("readers") or ())
    found(session())
    assert acts[-2:] == ["readers", "rewind"]


def test_the_reader_of_padding_is_named_and_all_inputs_of_as_many_rows_are_padded() -> None:
    facts = found(session())
    assert (facts.rows, facts.real, facts.inputs, facts.passed) == (8, 4, ("x", "other"), False)
    (reader,) = facts.readers
    assert reader.words.startswith("aten.mean.dim at test_padding.py:")
    assert facts.words == f"padding is read by {reader.words}"
    assert (facts.checks[0].garbage, facts.checks[0].changed) == ("noise", ("[0]: 4 of 4 real rows",))


def test_the_first_state_is_that_of_every_call_and_inputs_are_those_of_the_experiment() -> None:
    facts = found(session("padding.real=7", "padding.inputs=[other]", centred=False))
    assert facts.words == "padding of 1 of 8 rows is not read (eager; noise, nan, huge)"
    assert facts.inputs == ("other",)


class Counting(nn.Module):
    """[8, 6], the number of the call -> [8, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls * times


def test_a_model_that_counts_its_calls_and_takes_a_number_reads_no_padding() -> None:
    live = session()
    inputs = {"x": torch.rand(8, 6), "times": torch.tensor(2.0)}
    live.built = Built(module=inference(Counting()), inputs=lambda _: {k: one.clone() for k, one in inputs.items()})
    facts = found(live)
    assert facts.inputs == ("x",)
    assert facts.words == "padding of 4 of 8 rows is not read (eager; noise, nan, huge)"


def test_what_only_the_compiled_model_reads_is_told_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    live = session("mode=reduce-overhead", centred=False)
    monkeypatch.setattr(Session, "detached", None)
    monkeypatch.setattr(Session, "compiled", lambda self, x, other, scale: x + x.sum(0))
    facts = found(live)
    assert [(c.way, c.passed) for c in facts.checks] == [("eager", True)] * 3 + [("compiled", False)] * 3
    assert facts.readers == ()
    assert facts.words.startswith("padding is read: compiled, noise: [0]: 4 of 4 real rows")


def test_a_recording_is_called_by_its_handle_and_reads_no_padding() -> None:
    live = session("mode=reduce-overhead", centred=False)
    facts = found(live)
    assert live.detached is not None
    assert facts.words == "padding of 4 of 8 rows is not read (eager, compiled; noise, nan, huge)"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("padding.inputs=[y]", "padding.inputs: y is no input with rows. Possible: x, other, scale."),
        ("padding.inputs=[x,scale]", "x, scale have 2, 8 rows, not the same"),
        ("padding.real=8", "padding.real=8 of the 8 rows of x, other cannot be real"),
        ("padding.inputs=[one]", "is no input with rows"),
    ],
)
def test_rows_that_cannot_be_are_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        found(session(override))
    assert words in str(refused.value)


def test_the_pipeline_asks_for_it_and_the_expectation_needs_the_stage() -> None:
    job = Job.from_composed(compose(CHOSEN))
    assert [stage.name for stage in job.order][-1] == "padding"
    assert job.checked.experiment.expect.padding_ignored
    with pytest.raises(ConfigError, match=r"expect\.padding_ignored cannot be judged: it needs the stage padding"):
        Job.from_composed(compose(["model=mlp", "pipeline=check", "expect.padding_ignored=true"]))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM",
    "OPTForCausalLM", "FalconForCausalLM", "BertModel", "RobertaModel", "DistilBertModel", "ElectraModel",
    "DebertaV2Model", "AlbertModel", "ViTModel", "T5ForConditionalGeneration",
])  # fmt: skip
def test_classes_of_hugging_face_read_no_padding(architecture: str) -> None:
    pytest.importorskip("transformers", reason="the extra is not installed: pip install 'npucompose[transformers]'")
    chosen = ["model=transformers", f"model.architecture={architecture}", "model.batch=4", "pipeline=padding"]
    live: Any = Session(checked([*chosen, "mode=reduce-overhead"]))
    facts = found(live)
    assert facts.passed, facts.words
