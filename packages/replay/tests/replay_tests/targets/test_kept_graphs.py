"""What a process recorded of a frozen graph is replayed by a later one, for equal weights, options, passes and winners,
and for no others; what the recording does not answer is compiled then."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

import npucompose
from npucompose.bits import same_bytes
from npucompose.results.graphs import Winner
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.inductor import through as inductor
from npucompose_replay.kept import files as kept_files
from npucompose_replay.kept import graphs as kept_graphs
from npucompose_replay.kept import restored_code
from npucompose_replay.kept.graphs import KeptGraph
from npucompose_replay.kept.restored_graph import RestoredGraph
from npucompose_replay.products import winners
from npucompose_replay.products.winners import Winners
from tests.graph_helpers import traced

keeps = kept_graphs.keeps
"""As it is, before the tests' own hand is laid on it (conftest.py)."""
FUSED = ("mode=max-autotune", "inductor.max_autotune=null")


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept graphs; the native replayer stays where it is built."""
    monkeypatch.setattr(kept_graphs, "keeps", keeps)
    monkeypatch.setattr(kept_files, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(winners, "cache_dir", lambda: tmp_path / "cache")
    torch._dynamo.reset()
    return tmp_path / "cache" / kept_files.FOLDER


WEIGHT = torch.randn(4, 4)


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.relu(x @ WEIGHT) * torch.arange(4.0),)


def kept_by(key: str = "key", weight: torch.Tensor = WEIGHT, known: Winners | None = None) -> KeptGraph:
    return KeptGraph(backend=None, count=1, winners=known or Winners(), key=key, weights=[weight])  # type: ignore[arg-type]


def keep(known: Winners | None = None, key: str = "key", changed: tuple[Any, ...] | None = ()) -> KeptGraph:
    """A graph that was recorded, and kept where that is right."""
    x = torch.randn(2, 4)
    one = kept_by(key, known=known)
    one.compiled("graph_1", changed, frozenset())
    one.keep(CapturedGraph.capture(traced(scaled, x), [x]), [x])
    return one


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def found(one: KeptGraph) -> bool:
    """Whether what was kept would be loaded."""
    digest = one._digest(())
    facts = kept_files.facts_in(one._folder / f"{digest}.json")
    return bool(facts) and one._still_wins(facts) and kept_files.read(one._folder / str(digest), facts) is not None


def test_a_recording_is_kept_for_equal_weights_and_for_no_others(kept_here: Path):
    keep()
    assert found(kept_by(weight=WEIGHT.clone()))
    other = WEIGHT.clone()
    other[3, 3] += 1
    assert not found(kept_by(weight=other))
    assert not found(kept_by(key="another"))
    assert (kept_here / "key").stat().st_mode & 0o077 == 0


def test_the_values_are_those_that_were_frozen(kept_here: Path):
    """A write through .data afterwards is in nothing that was compiled."""
    weight, x = WEIGHT.clone(), torch.randn(2, 4)
    one = kept_by(weight=weight)
    one.compiled("graph_1", (), frozenset())
    recording = CapturedGraph.capture(traced(scaled, x), [x])
    weight.data.mul_(2)
    one.keep(recording, [x])
    assert found(kept_by(weight=WEIGHT.clone()))
    assert not found(kept_by(weight=weight))


def test_only_the_first_recording_is_kept(kept_here: Path):
    x = torch.randn(2, 4)
    one, recording = kept_by(), CapturedGraph.capture(traced(scaled, x), [x])
    one.compiled("graph_1", (), frozenset())
    one.keep(recording, [x])
    before = {name: (kept_here / "key" / name).stat().st_mtime_ns for name in files(kept_here)}
    one.keep(recording, [x])
    assert {name: (kept_here / "key" / name).stat().st_mtime_ns for name in files(kept_here)} == before


def test_what_aotautograd_does_more_to_is_not_kept(kept_here: Path):
    keep(changed=None)
    assert not kept_here.exists()


def measured(winner: str = "template") -> Winner:
    return Winner(key="mm_1", winner=winner, by="measured", times_us={"template": 1.0, "mm": 2.0})


def test_another_winner_lets_nothing_be_found():
    known = Winners()
    known.keep(measured())
    keep(known)
    assert found(kept_by())
    known.keep(measured("mm"))
    assert not found(kept_by())


def test_what_is_loaded_says_who_won_it():
    known, later = Winners(), kept_by()
    known.keep(measured())
    keep(known)
    assert found(later)
    assert later.winners.found["mm_1"].winner == "template"


def test_nothing_is_found_where_the_machine_has_forgotten_the_winner():
    known = Winners()
    known.found["mm_1"] = measured()
    keep(known)
    assert not found(kept_by())


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("ending", "harm"),
    [
        (".bin", flipped),
        (".bin", Path.unlink),
        (".json", lambda file: file.write_text("{")),
        (".json", lambda file: file.write_text("[]")),
        (".json", lambda file: file.chmod(0o666)),
        (".bin", lambda file: file.chmod(0o622)),
    ],
    ids=["other bytes", "gone", "no JSON", "no facts", "others may write the facts", "others may write the bytes"],
)
def test_a_file_that_is_not_what_was_written_is_not_believed(kept_here: Path, ending: str, harm: Callable[[Path], Any]):
    one = keep()
    assert found(one)
    harm(kept_here / "key" / f"{one._digest(())}{ending}")
    assert not found(one)


def test_the_oldest_go_where_there_are_too_many(kept_here: Path, monkeypatch: pytest.MonkeyPatch):
    keep(key="first")
    size = sum(file.stat().st_size for file in kept_here.rglob("*") if file.is_file())
    for file in (kept_here / "first").iterdir():
        os.utime(file, (1.0, 1.0))
    keep(key="second")
    for file in (kept_here / "second").iterdir():
        os.utime(file, (2.0, 2.0))
    monkeypatch.setattr(kept_files, "MOST_KEPT", int(2.5 * size))
    keep(key="third")
    assert sorted(one.name for one in kept_here.iterdir()) == ["second", "third"]


# -- through torch.compile


class Two(nn.Module):
    """Two products with frozen weights, and a buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16, bias=False)
        self.register_buffer("seen", torch.zeros(8, 16))

    seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        self.seen.add_(y)
        return (y + x) * (y + x) + self.seen


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one for each graph that Inductor compiles."""
    seen: list[str] = []
    through = inductor.through_inductor

    def listening(*given: Any, **keywords: Any) -> Any:
        seen.append("a graph")
        return through(*given, **keywords)

    monkeypatch.setattr(inductor, "through_inductor", listening)
    return seen


def in_a_new_process(model: nn.Module, *overrides: str) -> Any:
    """As far as torch knows: the model is compiled anew."""
    torch._dynamo.reset()
    return npucompose.compile(copy.deepcopy(model).eval(), *FUSED, *overrides)


def called(fast: Any, times: int = 2) -> Sequence[torch.Tensor]:
    with torch.no_grad():
        return [fast(torch.full((8, 16), 0.5)).clone() for _ in range(times)]


def test_a_graph_is_compiled_as_the_one_that_it_was_and_not_as_the_last():
    """Another graph of Dynamo's has come since: its inputs are called otherwise."""
    backend = npucompose.backend("mode=max-autotune")
    seen: list[tuple[Any, ...]] = []

    def compiling(given: Any, *_: Any) -> Any:
        seen.append(given.sources)
        return torch.neg

    mode = FakeTensorMode()
    with mode:
        fake = torch.empty(2)
    graph = torch.fx.symbolic_trace(nn.ReLU())
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["example_value"] = fake
    backend.resume(("L['mine']",), [fake])
    with tracing(TracingContext(mode)):
        restored = RestoredGraph(
            backend=backend, weights=[], winners=Winners(), graph_module=graph, facts={}, files=None,
            watch=SimpleNamespace(let_go=[]), how=dict, compiling=compiling,
        )  # type: ignore[arg-type]  # fmt: skip
    backend.resume(("L['other']",), [fake])
    assert restored.full() is torch.neg
    assert seen == [("L['mine']",)]
    assert backend.restored == []


def test_a_later_process_replays_what_was_kept_and_compiles_nothing(compiled: list[str]):
    model = Two()
    expected = called(in_a_new_process(model))
    assert len(compiled) == 1
    later = in_a_new_process(model)
    seen: Any = later._orig_mod.seen
    before = seen._version
    results = called(later)
    assert len(compiled) == 1
    assert all(map(same_bytes, results, expected))
    assert seen._version == before + 2
    assert (later.statistics.hits, later.statistics.captures) == (2, 0)
    with torch.no_grad():
        handle = later.detach(torch.full((8, 16), 0.5))
        reference = copy.deepcopy(later._orig_mod)
        x = torch.rand(8, 16)
        torch.testing.assert_close(handle(x), reference(x))
    assert len(compiled) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("passes=cse",),
        ("inductor.epilogue_fusion=false",),
        ("inductor.fx_graph_cache=false",),
    ],
    ids=lambda given: given[0],
)
def test_another_choice_is_compiled(compiled: list[str], overrides: Sequence[str]):
    model = Two()
    called(in_a_new_process(model))
    results = called(in_a_new_process(model, *overrides))
    assert len(compiled) == 2
    reference = copy.deepcopy(model)
    torch.testing.assert_close(results, called(reference))


@pytest.mark.slow
def test_other_weights_are_compiled_and_a_change_afterwards_is_seen(compiled: list[str]):
    model = Two()
    called(in_a_new_process(model))
    with torch.no_grad():
        model.up.weight.mul_(2)
    torch.testing.assert_close(called(in_a_new_process(model)), called(copy.deepcopy(model)))
    assert len(compiled) == 2
    later = in_a_new_process(model)
    called(later)
    assert len(compiled) == 2
    with torch.no_grad():
        later._orig_mod.down.weight.mul_(3)
        reference = copy.deepcopy(later._orig_mod)
    with pytest.warns(RuntimeWarning, match="frozen weights have changed"):
        results = called(later)
    assert len(compiled) == 3
    torch.testing.assert_close(results, called(reference))


@pytest.mark.slow
def test_the_account_is_that_of_a_compilation_and_keeps_the_recording(compiled: list[str]):
    model = Two()
    first = in_a_new_process(model, "passes=cse")
    expected = called(first, 3)
    later = in_a_new_process(model, "passes=cse")
    results = [*called(later)]
    (one,), (other,) = (fast.materialised.backend.compilations for fast in (first, later))
    assert len(compiled) == 2
    assert one.text_after == other.text_after
    assert [record.matches for record in one.passes] == [record.matches for record in other.passes]
    assert [facts["kernels"] for facts in (c.facts() for c in other.lowered.captured)]  # type: ignore[union-attr]
    results += called(later, 1)
    assert all(map(same_bytes, results, expected))
    assert later.statistics.captures == 1
    assert len(compiled) == 2


@pytest.mark.slow
def test_who_wants_to_see_every_operator_does(compiled: list[str]):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Onlooker(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = Two()
    expected = called(in_a_new_process(model))
    later = in_a_new_process(model)
    called(later, 1)
    with Onlooker(), torch.no_grad():
        (results,) = (later.materialised.backend.restored[0](torch.full((8, 16), 0.5)),)
    assert seen
    torch.testing.assert_close(results[0], expected[1])


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded_has_the_graph_compiled(compiled: list[str], monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError("failed to map segment from shared object")

    model = Two()
    expected = called(in_a_new_process(model))
    later = in_a_new_process(model)
    monkeypatch.setattr("npucompose_replay.kept.restored_graph.read_plan", refuses)
    assert all(map(same_bytes, called(later), expected))
    assert len(compiled) == 2


@pytest.mark.slow
def test_what_lies_there_is_text_and_libraries(kept_here: Path):
    called(in_a_new_process(Two()))
    endings = {Path(name).suffix for name in files(kept_here)}
    assert endings <= {".json", ".bin", ".so"}
    for file in kept_here.rglob("*.json"):
        assert json.loads(file.read_text())


def test_code_whose_inputs_are_numbers_alone_is_not_looked_for() -> None:
    """The symbols that kept code is loaded for come with a tensor."""
    kept: Any = SimpleNamespace(key="a key", guards=[])
    assert restored_code._found(kept, [3, torch.ones(2)]) is None
