"""What tools/torch_suites.py says of a graph: whose difference it is."""

from typing import Any

import pytest
import torch
import torch._inductor.compile_fx

from tools.judged_graphs import Judge, Mode


def judged(mode: Mode, called: Any, *inputs: torch.Tensor) -> list[str]:
    judge = Judge(mode, lambda _: None)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(called, backend=judge.judging(lambda graph, _: graph))(*inputs)
    return [one.kind for one in judge.found]


def refusing(*_: Any) -> None:
    raise RuntimeError("no")


@pytest.mark.slow
@pytest.mark.parametrize(("inductor_frozen", "said"), [(False, "refused"), (True, "as inductor")])
def test_what_only_ours_raises_is_held_against_it_and_what_frozen_inductor_raises_too_is_not(
    monkeypatch: pytest.MonkeyPatch, inductor_frozen: bool, said: str
) -> None:
    genuine = torch._inductor.compile_fx.compile_fx

    def compiled(*given: Any, **named: Any) -> Any:
        return refusing if inductor_frozen and "config_patches" in named else genuine(*given, **named)

    monkeypatch.setattr("npucompose.backend", lambda *_: lambda *__: refusing)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compiled)
    assert judged("max-autotune", lambda x: x + 1, torch.ones(3)) == [said]


def test_a_graph_that_gives_what_torch_gives_is_right() -> None:
    assert judged("reduce-overhead", lambda x: x * 2 + 1, torch.ones(3)) == ["right"]
