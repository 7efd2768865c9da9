"""The way in from Python: choices, notices, a backend by its name, scopes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose import api
from npucompose.errors import CaptureError, ConfigError
from npucompose.schema.experiment import Shapes
from npucompose.targets.base import ModeSupport


def test_choices_are_texts_and_lists_of_texts() -> None:
    assert api.caller_choices(["a=1", ["b=2", ("c=3",)]]) == ("a=1", "b=2", "c=3")
    with pytest.raises(ConfigError, match="a choice is a text like 'mode=reduce-overhead'; given 3"):
        api.caller_choices(["a=1", [3]])
    for choice in ("model=add", "+model.x=1", "~pipeline=run", "++pipeline.x=1"):
        with pytest.raises(ConfigError, match="has no meaning here: the model is the caller's"):
            api.materialize(choice)
    with pytest.raises(ConfigError, match="takes a module or a function first, then its choices; given 3"):
        api.compile(3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        ("cse", "cse"),
        (["cse", None], "[cse,null]"),
        (("a",), "[a]"),
        ({"a": {"b": True}, "c": [1, 2]}, "{a:{b:true},c:[1,2]}"),
    ],
)
def test_values_are_written_as_overrides(value: Any, text: str) -> None:
    assert api._text(value) == text


@pytest.mark.parametrize(
    ("overrides", "shapes"),
    [
        (["mode=reduce-overhead"], "auto"),
        (["mode=max-autotune"], None),
        (["mode=eager"], "static"),
        (["mode=reduce-overhead", "shapes=static"], "static"),
        (["mode=reduce-overhead", "shapes.dynamic=true"], "static"),
        (["mode=reduce-overhead", "target=null_device"], "auto"),
    ],
)
def test_where_each_signature_is_recorded_shapes_are_auto(overrides: list[str], shapes: str | None) -> None:
    checked = api.checked(overrides, with_model=False)
    made = api.with_own_shapes(checked)
    captures = checked.target.capabilities(checked.experiment.mode.name).captures
    wanted = shapes or ("auto" if captures else "static")
    assert made.experiment.shapes.name == wanted
    if wanted == "auto":
        assert made.experiment.shapes == Shapes(name="auto", dynamic=None)
        assert made.provenance["shapes.name"] == made.provenance["shapes.dynamic"] == api.OWN_SHAPES
        assert made.provenance["mode.name"] == checked.provenance["mode.name"]
    else:
        assert made is checked


def test_where_sizes_grow_with_every_call_shapes_are_auto_without_a_recording_too() -> None:
    checked = api.checked(["mode=max-autotune"], with_model=False)
    assert api.with_own_shapes(checked) is checked
    assert api.with_own_shapes(checked, growing=True).experiment.shapes == Shapes(name="auto", dynamic=None)
    chosen = api.checked(["mode=max-autotune", "shapes.dynamic=true"], with_model=False)
    assert api.with_own_shapes(chosen, growing=True) is chosen


def test_one_set_of_notices_and_one_composer_serve_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api._notices() is api._notices()
    assert api.composer_of() is api.composer_of()
    assert api._watching("warn") is api._watching("warn")
    assert api._watching("warn") is not api._watching("error")
    said: list[str] = []
    monkeypatch.setattr(type(api._notices()), "reset", lambda self: said.append("reset"))
    api.dynamo_backend.reset()  # type: ignore[attr-defined]
    assert said == ["reset"]


def test_a_graph_by_the_backend_s_name_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Backend:
        def __init__(self, fuses: bool) -> None:
            self.target = SimpleNamespace(support=lambda mode: ModeSupport(fuses=fuses and mode == "m"))
            self.mode, self.inductor = "m", SimpleNamespace(frozen_weights="warn")
            self.frozen = self.notices = None

        def __call__(self, graph: Any, inputs: Any) -> str:
            seen.append((graph, inputs, self.frozen, self.notices))
            return "compiled"

    for fuses in (True, False):
        made = Backend(fuses)

        def materialised(choices: Any, composed: Any, made: Backend = made) -> Any:
            seen.append(tuple(choices))
            assert composed.__self__ is api.composer_of()
            return SimpleNamespace(backend=made)

        monkeypatch.setattr(api, "_materialised", materialised)
        assert api.dynamo_backend("graph", ["x"], options={"seed": 3, "passes": ["cse"]}) == "compiled"
        assert seen[-2] == ("seed=3", "passes=[cse]")
        assert seen[-1] == ("graph", ["x"], api._watching("warn") if fuses else None, api._notices())
    api.dynamo_backend("graph", [])
    assert seen[-2] == ()


def test_a_scope_names_its_stream_and_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from npucompose import scope

    said: list[Any] = []
    monkeypatch.setattr(scope, "_enter", lambda *given: said.append(given))
    monkeypatch.setattr(scope, "_exit", lambda *given: said.append("out"))
    with scope.npu_stream_switch("s", 2), scope.npu_stream_switch("t"):
        pass
    keys = ["_user_stream_label", "_user_stream_priority"]
    assert said == [(keys, ["s", "2"]), (keys, ["t", "0"]), "out", "out"]
    assert isinstance(scope.record(), torch.Tensor)
    assert scope.wait((scope.record(),)) is None


def test_the_package_brings_its_names_late_and_no_others() -> None:
    import npucompose

    for name in npucompose.__all__:
        assert getattr(npucompose, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        _ = npucompose.no_such  # type: ignore[attr-defined]


def test_a_call_with_gradients_is_not_detached_and_the_sentence_says_what_to_do() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    fast = api.compile(model, ["mode=reduce-overhead"])
    with pytest.raises(
        CaptureError, match=r"this call computes gradients.*torch\.no_grad\(\).*requires_grad_\(False\)"
    ):
        fast.detach(x)
    with torch.no_grad():
        assert torch.equal(fast.detach(x)(x), model(x))
    model.requires_grad_(False)
    assert torch.equal(fast.detach(x)(x), model(x))
    with pytest.raises(CaptureError, match="this call computes gradients"):
        fast.detach(x.requires_grad_())
