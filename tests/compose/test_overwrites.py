"""A graph whose runs overwrite one another within one call of the model is told of, and only there."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest

from npucompose.api import checked
from npucompose.compose.session import Session
from npucompose.experiment.explain import explained
from npucompose.results.measured import Overwrites
from npucompose.schema.capabilities import Capabilities
from npucompose.targets.cpu import CpuTarget
from tests.npu.claims import REPEATED, REPEATED_CHOICES

OPTION = "debug.aclgraph.enable_output_clone"
WORDS = (
    f"graph_0 runs 3 times in one call of the model, and TorchAir returns each run's results in the same memory: "
    f"compiler.{OPTION}=true makes copies"
)


class Overwriting(CpuTarget):
    """As on a device whose recordings overwrite what they gave."""

    def capabilities(self, mode: str) -> Capabilities:
        return attrs.evolve(super().capabilities(mode), clone_option=OPTION)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rows", raising=False)
    (tmp_path / "rows.py").write_text(REPEATED)


def session(*choices: str, target: CpuTarget) -> Session:
    made = checked(["target=cpu", "mode=reduce-overhead", *REPEATED_CHOICES, *choices])
    return Session(attrs.evolve(made, target=target))


def test_its_runs_are_counted_and_explain_names_the_option(place: None) -> None:
    made = session(target=Overwriting())
    assert explained(made).notes == (WORDS,)
    assert made.overwrites == {"graph_0": Overwrites(runs=3, option=f"compiler.{OPTION}")}
    made.call(made.compiled, made.inputs(0))
    repeated = made.materialised.backend.repeated
    assert repeated is not None
    assert repeated.close() == {"graph_0": 3}, "of the first call, not of all"


def test_nothing_is_said_where_results_are_copied_or_left_to_their_holders(place: None) -> None:
    assert explained(session(f"compiler.{OPTION}=true", target=Overwriting())).notes == ()
    plain = session(target=CpuTarget())
    assert explained(plain).notes == ()
    assert plain.materialised.backend.repeated is None


def test_runs_on_other_shapes_are_recorded_apart_and_count_apart() -> None:
    import torch

    from npucompose.targets.compiled_calls import Repeated

    repeated = Repeated()
    called = repeated.watched(lambda x, n: x, "graph_0")
    for size, number in ((2, 1), (2, 1), (3, 1), (3, 2)):
        called(torch.zeros(size), number)
    assert repeated.close() == {"graph_0": 2}
