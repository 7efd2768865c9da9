"""The benchmark table: who takes part, what a cell says where there is no figure, and when a goal is met."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def measured(us: float, share: float, **more: Any) -> dict[str, Any]:
    return {
        "p50_us": us, "p25_us": us, "p75_us": us * 2, "as_fast_as_eager": share, "bitwise": True, "max_abs_err": 0.0,
        "made_s": 1.0, "calls": 10, **more,
    }  # fmt: skip


def result(**candidates: dict[str, Any]) -> dict[str, Any]:
    names = {"detached": "npucompose, detached", "aoti": "AOTInductor", "vino": "OpenVINO"}
    names |= {"fused": "npucompose max-autotune, detached", "wrapped": "npucompose max-autotune"}
    return {
        "model": "gpt_decode",
        "threads": 1,
        "date": "2026-11-21",
        "environment": {"cpu": "a processor", "cores": 2, "threads": 1, "versions": {"torch": "2.13.0"}},
        "candidates": {names.get(name, name): row for name, row in candidates.items()},
    }


def test_every_candidate_that_was_asked_for_takes_part() -> None:
    from candidates import CANDIDATES, OTHERS, RECOMMENDED, WRAPPED

    assert len(CANDIDATES) == 18
    assert next(iter(CANDIDATES)) == "eager"
    assert {*OTHERS, *WRAPPED, RECOMMENDED} <= set(CANDIDATES)


@pytest.mark.parametrize(("share", "met"), [(1.9, True), (2.2, False)])
def test_a_goal_is_a_ratio_of_ratios(share: float, met: bool) -> None:
    from performance_goals import goals

    found = result(eager=measured(1000, 1.0), detached=measured(500, 2.0), aoti=measured(1000 / share, share))
    (goal,) = [goal for goal in goals([found]) if goal.words.startswith("gpt_decode: npucompose, detached")]
    assert (goal.figure, goal.met) == (f"{share / 2:.2f}", met)
    assert {goal.met for goal in goals([])} == {None}


@pytest.mark.parametrize(("speed", "met"), [(2.5, True), (1.9, False)])
def test_the_recommended_way_is_compared_with_eager_and_the_best_of_each_kind(speed: float, met: bool) -> None:
    from performance_goals import goals

    fused = measured(1, speed, fp64_error=3e-7 / speed)
    found = result(
        fused=fused, wrapped=measured(1, 2.0), detached=measured(1, 1.5), vino=measured(1, 2.0),
        aoti=measured(1, 1.0), Inductor=measured(1, 1.0, fp64_error=1.5e-7),
    )  # fmt: skip
    reached = {
        goal.words.removeprefix("every cell: npucompose max-autotune, detached "): goal for goal in goals([found])
    }
    words = {
        "gpt_decode: speed-up of npucompose max-autotune, detached at least 2.15": f"{speed:.2f}",
        "at least 0.98 × the better of Inductor's own wrappers": f"{speed / 2:.2f} (gpt_decode, 1 thread)",
        "at least 0.97 × the best rival": f"{speed / 2:.2f} (gpt_decode, 1 thread)",
    }
    assert {name: (reached[name].figure, reached[name].met) for name in words} == {
        name: (figure, met) for name, figure in words.items()
    }
    assert reached["at least 0.98 × npucompose, detached"].met
    (mean,) = [goal for name, goal in reached.items() if name.startswith("mean of all cells")]
    (error,) = [goal for name, goal in reached.items() if name.endswith("at most that of Inductor")]
    assert (mean.met, error.met) == (met, met)


def test_one_slow_cell_is_the_figure_of_a_goal_over_all_of_them() -> None:
    from performance_goals import goals

    fast = result(fused=measured(1, 3.0), vino=measured(1, 1.0))
    slow = {**result(fused=measured(1, 1.0), vino=measured(1, 2.0)), "model": "unet", "threads": 2}
    (goal,) = [goal for goal in goals([fast, slow]) if "the best rival" in goal.words and "every cell" in goal.words]
    assert (goal.figure, goal.met) == ("0.50 (unet, 2 threads)", False)
    (mean,) = [goal for goal in goals([fast, slow]) if goal.words.startswith("mean")]
    assert mean.figure == f"{1.5**0.5:.2f}"


def pages(monkeypatch: pytest.MonkeyPatch, folder: Path, with_memory: bool = True, **goals: list[Any]) -> None:
    """Write into `folder` what there is to say of two machines; `goals` are those of the first and of the second."""
    import performance_page

    monkeypatch.setattr(performance_page, "PAGE", folder / "performance.md")
    monkeypatch.setattr(performance_page, "DETAILS", folder / "performance")
    row = measured(1500, 2.0, bitwise=False, max_abs_err=1e-6, fp64_error=2e-7, floor_us=90.0)
    found = result(eager=measured(3000, 1.0), detached=row, vino={"why_not": "not installed | extra"})
    other = result(eager=measured(1000, 1.0), detached=measured(800, 1.25))
    other["environment"] = {**other["environment"], "cpu": "Maker(R) B-7(TM) Processor"}
    machines = performance_page.by_machine([found, other])
    held = {"held_bytes": 5 << 20, "peak_bytes": 7 << 20, "pool_bytes": 2048, "packed_bytes": 3 << 19}
    memory = {
        **result(eager={**held, "pool_bytes": None, "packed_bytes": None}, detached=held, vino={"why_not": "no"}),
        "date": "2026-11-22",
    }
    reached = {"a processor": goals["first"], "Maker B-7": goals["second"]}
    performance_page.write(machines, ["gpt_decode", "unet"], reached, {"gpt_decode": memory} if with_memory else {})


def test_the_page_of_a_machine_shows_a_reason_where_there_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages(monkeypatch, tmp_path, first=[], second=[])
    text = (tmp_path / "performance" / "a_processor.md").read_text()
    assert "| OpenVINO | not installed / extra | | | | | | |\n" in text
    assert "- gpt_decode, OpenVINO: not installed / extra" in text
    assert (
        "| npucompose, detached | 1.50 ms | 1.50 ms – 3.00 ms | 2.00 | off by 1.0e-06 | 2.0e-07 | 1.0 s | 90.0 µs |\n"
        in text
    )
    errors = text.split("## Error against the model in double precision, 1 thread")[1].split("##")[0]
    assert "| npucompose, detached | 2.0e-07 |" in errors
    assert "| OpenVINO | [none](#reasons) |" in errors
    assert "off by" not in (tmp_path / "performance" / "maker_b_7.md").read_text()


def test_the_first_page_has_the_goals_and_speed_ups_of_every_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from performance_goals import Goal

    first, second = Goal(words="a goal", figure="0.9", met=False), Goal(words="a goal", figure="1.1", met=True)
    pages(monkeypatch, tmp_path, first=[first], second=[second])
    text = (tmp_path / "performance.md").read_text()
    assert "| | a processor | | Maker B-7 | |\n|---|---:|---|---:|---|\n" in text
    assert "| a goal | 0.9 | **missed** | 1.1 | met |" in text
    assert "[Maker B-7](performance/maker_b_7.md), [a processor](performance/a_processor.md)" in text
    speeds = text.split("## Speed-up over eager, 1 thread, a processor")[1].split("##")[0]
    assert "| npucompose, detached | 2.00 |" in speeds
    assert "| OpenVINO | [none](performance/a_processor.md#reasons) |" in speeds
    speeds = text.split("## Speed-up over eager, 1 thread, Maker B-7")[1].split("##")[0]
    assert "| npucompose, detached | 1.25 |" in speeds


def test_wrong_results_are_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import performance
    from subject import Ready, Subject, Unavailable

    module = torch.nn.Identity()
    inputs = [(torch.ones(2),), (torch.full((2,), 2.0),)]
    subject = Subject(module=module, inputs=inputs[0], threads=1)
    expected = performance.Expected.of(subject, inputs)

    def row(make: Any) -> dict[str, Any]:
        found, made = performance._made(make, subject, expected)
        assert (made is None) == ("why_not" in found)
        return found

    assert row(lambda _: Ready(call=module)).items() >= {"bitwise": True, "fp64_error": 0.0}.items()
    near = row(lambda _: Ready(call=lambda x: x * (1 + 2**-22)))
    assert (near["bitwise"], near["fp64_error"]) == (False, 2**-22)
    wrong = row(lambda _: Ready(call=lambda x: x + 1))
    assert "other results than eager's" in wrong["why_not"]
    assert "fp64_error" not in wrong

    def refuses(_: Any) -> Any:
        raise Unavailable("no such thing here")

    assert row(refuses)["why_not"] == "no such thing here"
    assert row(lambda _: 1 / 0)["why_not"] == "ZeroDivisionError: division by zero"


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import rivals

    with pytest.raises(rivals.Unavailable, match=r"not installed: no_such_library \(extra: bench\)"):
        rivals._needs("sys", "no_such_library")
    assert "no_such_library" not in sys.modules


def test_a_rival_that_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import rivals
    from subject import Subject, Unavailable

    subject = Subject(module=torch.nn.ReLU(), inputs=(torch.ones(2),), threads=1)
    monkeypatch.setattr(rivals, "_is_there", lambda _: False)
    for name in set(rivals.RIVALS) - {"nativert"}:
        with pytest.raises(Unavailable, match=r"not installed: .*\(extra: (bench|rivals)\)"):
            rivals.RIVALS[name](subject)
    monkeypatch.setattr(torch._C, "_nativert", None, raising=False)
    with pytest.raises(Unavailable, match=r"has no torch\._C\._nativert"):
        rivals.RIVALS["nativert"](subject)


def test_packages_within_a_missing_one_are_missing() -> None:
    import rivals

    assert rivals._is_there("importlib.util")
    assert not rivals._is_there("no_such_library.inside")


def test_errors_are_relative_to_the_norm_of_all_results_in_double_precision() -> None:
    from accuracy import error

    wanted = (
        torch.tensor([3.0, 0.0], dtype=torch.float64),
        {"ids": torch.tensor([7]), "y": torch.tensor([4.0]).double()},
    )
    got = torch.tensor([3.0, 0.0]), {"ids": torch.tensor([8]), "y": torch.tensor([4.5])}
    assert error(wanted, got) == pytest.approx(0.1)
    assert error(torch.tensor([1]), torch.tensor([2])) is None
    assert error(wanted[0], torch.zeros(3)) is None


def test_a_model_that_computes_in_float32_by_itself_is_computed_in_double_all_the_same() -> None:
    from accuracy import error, in_double

    class Softmax(torch.nn.Module):
        """As decoders do: the softmax in float32, whatever the rest is in."""

        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(16, 16))
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x)
            return torch.softmax((self.seen @ self.weight).float(), -1, dtype=torch.float32).to(x.dtype) @ self.weight

    torch.manual_seed(0)
    module, steps = Softmax(), [(torch.randn(16),), (torch.randn(16),)]
    found = in_double(module, steps)
    weight = module.weight.detach().double()
    first, second = (x.double() for (x,) in steps)
    for got, seen in zip(found, (first, first + second), strict=True):
        assert got.dtype == torch.float64
        assert error(torch.softmax(seen @ weight, -1) @ weight, got) < 1e-14
    assert not module.seen.any()


def test_the_first_page_says_what_each_candidate_holds_where_that_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages(monkeypatch, tmp_path, first=[], second=[])
    said, table = (tmp_path / "performance.md").read_text().split("## Memory\n")[1].split("\n\n")
    assert said.endswith("Measured on a processor, 2026-11-22.")
    assert table.startswith("| | gpt_decode |\n|---|---:|\n| eager | 5 (7) MiB |\n")
    assert "| npucompose, detached | 5 (7) MiB, packed 1.5 MiB, pool 2 KiB |\n" in table
    assert "| OpenVINO |  |\n" in table
    pages(monkeypatch, tmp_path, with_memory=False, first=[], second=[])
    assert "Memory" not in (tmp_path / "performance.md").read_text()


def test_memory_is_what_the_process_holds_beyond_what_it_held_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import candidates
    import memory
    from subject import Ready, Subject, Unavailable

    held: list[mmap.mmap] = []

    def taken(mebibytes: int) -> mmap.mmap:
        """Of the system, whatever the heap has left."""
        memory = mmap.mmap(-1, mebibytes << 20)
        for _ in range(mebibytes):
            memory.write(b"x" * (1 << 20))
        return memory

    def wasteful(subject: Subject) -> Ready:
        held.append(taken(32))
        taken(64).close()
        return Ready(call=subject.module, pool_bytes=3, packed_bytes=5)

    def missing(subject: Subject) -> Ready:
        raise Unavailable("not here")

    monkeypatch.setitem(candidates.CANDIDATES, "wasteful", wasteful)
    monkeypatch.setitem(candidates.CANDIDATES, "missing", missing)
    found = memory.measured("tiny_ops", "wasteful")
    assert 30 < found["held_bytes"] / 2**20 < 48  # the system counts in batches of pages
    assert 94 < found["peak_bytes"] / 2**20 < 150
    assert (found["pool_bytes"], found["packed_bytes"]) == (3, 5)
    assert memory.measured("tiny_ops", "missing") == {"why_not": "not here"}


def test_a_candidate_that_ends_its_process_has_that_for_a_reason() -> None:
    import memory

    assert memory.apart("tiny_ops", "no such candidate") == {"why_not": "it ends the process: exit status 1"}


def test_the_floor_of_a_candidate_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies the recording, with memory that nothing shares: a candidate that is not asked does not hold that."""
    import candidates
    from subject import Subject

    made = []

    class Counted(candidates.Floor):
        def __init__(self, captured: Any, inputs: Any) -> None:
            made.append(captured)
            super().__init__(captured, inputs)

    monkeypatch.setattr(candidates, "Floor", Counted)
    module, x = torch.nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)
    found = candidates.CANDIDATES[candidates.DETACHED](Subject(module=module, inputs=(x,), threads=1))
    found.call(x)
    assert made == []
    assert found.floor is not None
    assert min(found.floor(), found.floor()) > 0
    assert len(made) == 1
