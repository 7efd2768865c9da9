"""What is put around the calls that Inductor compiles, and into its configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.vendor.inductor import InductorOptions
from npucompose_replay.inductor import freezing as around
from npucompose_replay.inductor import through
from npucompose_replay.inductor.frozen_weights import FrozenWeights
from tests.targets.noting import Noting, backend


@pytest.mark.parametrize(
    ("fusing", "freezing", "wrapped"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_calls_are_made_so_that_dynamo_freezes_where_inductor_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, fusing: bool, freezing: bool, wrapped: bool
) -> None:
    monkeypatch.setattr(around, "freezing_while_tracing", lambda *given: given)
    options = InductorOptions(values={"freezing": freezing, "frozen_weights": "error"})
    made = backend(Noting(fusing=fusing), inductor=options)
    compiled = print
    found: Any = made._while_tracing(compiled)
    if not wrapped:
        assert found is compiled
        return
    called, weights = found
    assert called is compiled
    assert weights is made.frozen
    assert isinstance(weights, FrozenWeights)
    assert (weights.policy, weights.shared) == ("error", False)


@pytest.mark.parametrize(
    ("set_already", "then"),
    [(None, "ours"), ("theirs", ["theirs", "ours"]), (["one", "two"], ["one", "two", "ours"]),
     (("one",), ["one", "ours"])],
)  # fmt: skip
def test_what_a_caller_has_inductor_do_comes_first(
    set_already: Any, then: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "inductor_config", SimpleNamespace(post_grad_custom_post_pass=set_already))
    ours: Any = "ours"
    assert through._after_the_callers(ours) == then
