"""What a new node takes over, and fake values that are known without asking the operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.graphs.matching import value_of
from npucompose.passes.metadata import KEPT, fake_like, fake_mode_of, fake_result, inherited, same_form
from tests.sample_graphs import Program, aten, traced

FORMS: dict[str, Any] = {
    "dense": lambda: torch.empty(2, 3, 4),
    "turned": lambda: torch.empty(4, 3, 2).permute(2, 0, 1),
    "apart": lambda: torch.empty(2, 3, 8)[..., ::2],
    "behind": lambda: torch.empty(48)[24:].view(2, 3, 4),
    "ones": lambda: torch.empty(2, 1, 4),
    "expanded": lambda: torch.empty(2, 1, 4).expand(2, 3, 4),
    "empty": lambda: torch.empty(2, 0, 4),
}
MOVES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "permute": (aten.permute.default, ([2, 0, 1],), {}),
    "permute from the end": (aten.permute.default, ([-1, -3, -2],), {}),
    "laid down": (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
    "cast": (aten._to_copy.default, (), {"dtype": torch.float64}),
    "copy": (aten.clone.default, (), {}),
    "cast to a device": (aten._to_copy.default, (), {"dtype": torch.float64, "device": torch.device("cpu")}),
    "sum": (aten.sum.dim_IntList, ([1],), {}),
}


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("form", FORMS)
def test_a_fake_value_has_the_form_that_the_operator_gives(form: str, move: str) -> None:
    mode = FakeTensorMode()
    with mode:
        source = FORMS[form]()
    target, args, kwargs = MOVES[move]
    with mode:
        wanted = target(source, *args, **kwargs)
    with Counted() as counted:
        got = fake_result(target, (source, *args), kwargs, mode)
    assert isinstance(got, FakeTensor)
    assert got.fake_mode is mode
    assert same_form(got, wanted) or (move.startswith("permute") and got.storage_offset() == 0)
    assert (got.stride(), got.device.type) == (wanted.stride(), "cpu")
    name = target.overloadpacket.__name__
    alone = {"permute": True, "laid down": True, "cast": form in ("dense", "turned", "behind", "empty")}
    assert (counted.calls[name] == 0) is alone.get(move.partition(" from")[0], False), counted.calls


def test_nodes_stand_for_their_values_and_what_has_no_arguments_is_asked() -> None:
    building = Program(inputs=1)
    x = building.values[0]
    assert value_of(x) is x.meta["val"]
    assert value_of(3) == 3
    assert fake_result(aten.mm.default, (x, x), {}, building.mode).shape == (4, 4)
    assert isinstance(fake_result(aten.zeros.default, ([2],), {}, building.mode), FakeTensor)
    assert fake_result(aten.full.default, (), {"size": [2], "fill_value": 1}, None).tolist() == [1, 1]
    kept = fake_result(aten.mul.Tensor, (torch.ones(2, requires_grad=True), 2), {}, None)
    assert not kept.requires_grad


def test_the_mode_is_that_of_the_node_or_of_what_it_reads() -> None:
    building = Program(inputs=1)
    x = building.values[0]
    bare = building.graph.call_function(aten.relu.default, (x,))
    assert fake_mode_of(x) is building.mode
    assert fake_mode_of(bare) is building.mode
    bare.meta["val"] = torch.ones(2)
    assert fake_mode_of(bare) is building.mode
    x.meta["val"] = torch.ones(2)
    assert fake_mode_of(bare) is None
    with building.mode:
        bare.meta["val"] = (3, [torch.ones(2)])
    assert fake_mode_of(bare) is building.mode


def test_where_a_node_comes_from_is_kept_and_nothing_else() -> None:
    node = fx.Graph().placeholder("x")
    node.meta.update(stack_trace="a line", val=3, seq_nr=7, other=1)
    assert inherited(node) == {"stack_trace": "a line", "seq_nr": 7}
    assert "val" not in KEPT


def test_a_value_behind_others_has_its_offset_and_no_more_memory_than_it_reaches() -> None:
    with FakeTensorMode() as mode:
        model = torch.empty(2, 3)
    made = fake_like(model, (2, 3), torch.float64, strides=(6, 2), offset=5)
    assert (made.storage_offset(), made.stride(), made.dtype, made.fake_mode) == (5, (6, 2), torch.float64, mode)
    assert made.untyped_storage().nbytes() == (5 + 6 + 4 + 1) * 8
    assert fake_like(model, (2, 3), torch.float64).untyped_storage().nbytes() == 6 * 8


def test_what_an_operator_would_choose_freely_is_not_guessed() -> None:
    for form in ("apart", "ones", "expanded"):
        with FakeTensorMode():
            model = FORMS[form]()
        assert fake_like(model, model.shape, model.dtype) is None
        laid = fake_like(model, model.shape, model.dtype, laid_down=True)
        assert laid.stride() == torch.empty(model.shape).stride()
    symbolic = next(iter(traced(lambda x: x + 1, torch.empty(3, 4), mode="symbolic").graph.nodes)).meta["val"]
    assert fake_like(symbolic, symbolic.shape, symbolic.dtype) is None
    assert fake_like(symbolic, symbolic.shape, symbolic.dtype, laid_down=True) is None
    given = fake_like(symbolic, symbolic.shape, torch.float64, strides=symbolic.stride())
    assert given.fake_mode is symbolic.fake_mode
    assert given.shape == symbolic.shape


def test_beside_a_real_tensor_the_value_is_real() -> None:
    made = fake_like(torch.empty(2, 3), (3, 2), torch.float64, strides=(1, 3))
    assert type(made) is torch.Tensor
    assert (made.shape, made.stride(), made.dtype) == ((3, 2), (1, 3), torch.float64)
