"""mode=max-autotune freezes weights and follows them: whatever becomes of a weight, the next call computes with it."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache

import npucompose
from npucompose.errors import ConfigError, FrozenWeightError
from npucompose.targets import compilers
from npucompose.targets.backend import Backend
from npucompose.targets.cuda import CudaTarget
from npucompose_replay.inductor.frozen_weights import Watch, Weight

FUSED = ("mode=max-autotune", "inductor.max_autotune=null")
"""Without timing kernels: these claims are not about speed."""
X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Net(nn.Module):
    """Products only: nothing here needs a C++ compiler."""

    offset: torch.Tensor
    fc: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("offset", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return self.out(torch.addmm(self.offset, y, self.fc.weight))


@pytest.fixture
def net() -> Iterator[Net]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Net().eval()
    torch._dynamo.reset()


def changes_told(call: Callable[[], Any]) -> list[str]:
    """The warnings about frozen weights while `call` runs."""
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if "frozen" in str(w.message)]


def follows(fast: Callable[..., Any], net: nn.Module, x: torch.Tensor = X) -> None:
    torch.testing.assert_close(fast(x), net(x))


def step(net: Net) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(X).sum().backward()
    optimizer.step()


def write(net: Net) -> None:
    with torch.no_grad():
        net.fc.weight.mul_(0.9)


def write_in_inference_mode(net: Net) -> None:
    with torch.inference_mode():
        net.fc.weight.add_(1)


def set_data(net: Net, value: torch.Tensor) -> None:
    net.fc.weight.data = value


def replace_module(net: Net) -> None:
    net.fc = nn.Linear(8, 8)


def write_buffer(net: Net) -> None:
    net.offset.add_(1)


CHANGES: dict[str, tuple[Callable[[Net], Any], str]] = {
    "written in place": (write, "fc.weight was written to"),
    "written in inference mode": (write_in_inference_mode, "fc.weight was written to"),
    "a step of an optimiser": (step, "fc.weight was written to"),
    "load_state_dict": (lambda net: net.load_state_dict(Net().state_dict()), "fc.weight was written to"),
    "load_state_dict, assigned": (
        lambda net: net.load_state_dict(Net().state_dict(), assign=True),
        "fc.weight was replaced",
    ),
    "replaced": (lambda net: setattr(net.fc, "weight", nn.Parameter(torch.randn(8, 8))), "fc.weight was replaced"),
    "its module replaced": (replace_module, "fc.weight was replaced"),
    ".data set": (lambda net: set_data(net, torch.randn(8, 8)), "fc.weight was given other memory"),
    ".data transposed": (lambda net: set_data(net, net.fc.weight.data.t()), "fc.weight has another dtype, device"),
    ".data written": (lambda net: net.fc.weight.data.mul_(2), "fc.weight was written to through .data"),
    "a buffer written": (write_buffer, "offset was written to"),
}


SLOW = (
    "load_state_dict, assigned",
    ".data written",
    "a step of an optimiser",
    "written in inference mode",
    "load_state_dict",
    "its module replaced",
    ".data transposed",
    ".data set",
)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in CHANGES])
def test_a_change_is_followed_by_the_next_call_and_told_once(net: Net, kind: str):
    fast = npucompose.compile(net, *FUSED)
    assert changes_told(lambda: [follows(fast, net) for _ in range(2)]) == []
    change, words = CHANGES[kind]
    change(net)
    told = changes_told(lambda: [follows(fast, net) for _ in range(3)])
    assert len(told) == 1
    assert words in told[0]
    backend = fast.materialised.backend
    assert len(backend.entered_at) == 2
    assert [c.id for c in backend.compilations] == ["graph_1"], "what was made of the old weights is gone"


def test_without_the_watch_a_change_is_not_seen(net: Net, monkeypatch: pytest.MonkeyPatch):
    """The claims above can fail."""
    monkeypatch.setattr(Watch, "holds", lambda *_: True)
    fast = npucompose.compile(net, *FUSED)
    with torch.no_grad():
        before = fast(X)
        write(net)
        assert torch.equal(fast(X), before)
        with pytest.raises(AssertionError, match="not close"):
            follows(fast, net)


@pytest.mark.slow
def test_another_dtype_and_back_is_followed(net: Net):
    fast = npucompose.compile(net, *FUSED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.float64, torch.float32):
            follows(fast.to(dtype), net, X.to(dtype))


def test_a_deleted_weight_is_an_error_and_not_its_old_value(net: Net):
    fast = npucompose.compile(net, *FUSED)
    with torch.no_grad():
        fast(X)
        del fast.fc.weight
        with pytest.raises(Exception, match="weight"):
            fast(X)


def test_one_change_is_told_once_for_all_signatures(net: Net):
    fast = npucompose.compile(net, *FUSED)
    shapes = (X, X[:2])
    with torch.no_grad():
        for x in shapes:
            follows(fast, net, x)
    write(net)
    assert len(changes_told(lambda: [follows(fast, net, x) for x in (*shapes, *shapes)])) == 1


def test_a_state_that_the_graph_writes_is_no_change():
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("seen").add_(self.fc(x))
            return self.get_buffer("seen").clone()

    torch._dynamo.reset()
    net = Counter().eval()
    reference, fast = copy.deepcopy(net), npucompose.compile(net, *FUSED)
    assert changes_told(lambda: [follows(fast, reference) for _ in range(4)]) == []
    assert len(fast.materialised.backend.entered_at) == 1


def test_requires_grad_and_inference_mode_are_no_changes(net: Net):
    fast = npucompose.compile(net, *FUSED)
    with torch.no_grad():
        follows(fast, net)
        net.requires_grad_(False)
        assert changes_told(lambda: follows(fast, net)) == []
        with torch.inference_mode():
            assert changes_told(lambda: [follows(fast, net) for _ in range(2)]) == []


def test_a_change_is_an_error_where_that_is_asked_for(net: Net):
    fast = npucompose.compile(net, *FUSED, "inductor.frozen_weights=error")
    with torch.no_grad():
        follows(fast, net)
        write(net)
        for _ in range(2):
            with pytest.raises(FrozenWeightError, match=r"fc\.weight was written to.*frozen_weights=refreeze"):
                fast(X)
        follows(npucompose.compile(fast, *FUSED), net)


def test_error_is_refused_where_nothing_is_frozen():
    with pytest.raises(ConfigError, match=r"frozen_weights=error has no effect: inductor\.freezing is off"):
        npucompose.materialize(*FUSED, "inductor.freezing=false", "inductor.frozen_weights=error")
    with pytest.raises(ConfigError, match=r"frozen_weights takes refreeze \| error; given refreze\. Did you mean"):
        npucompose.materialize(*FUSED, "inductor.frozen_weights=refreze")


def by_name(net: nn.Module, **options: Any) -> Callable[..., Any]:
    given = {"mode": "max-autotune", "inductor.max_autotune": None, **options}
    return torch.compile(net, backend="npucompose", options=given)


def test_by_name_weights_are_inputs_and_followed(net: Net):
    fast = by_name(net)
    assert changes_told(lambda: follows(fast, net)) == []
    write(net)
    assert changes_told(lambda: follows(fast, net)) == []


def test_by_name_what_torch_s_own_switch_freezes_is_watched(net: Net):
    other = Net().eval()
    fast, strict = by_name(net), by_name(other, **{"inductor.frozen_weights": "error"})
    with inductor_config.patch(freezing=True), torch.no_grad():
        follows(fast, net)
        follows(strict, other)
        write(net)
        write(other)
        with pytest.raises(Exception, match=r"FrozenWeightError: a frozen weight has changed: fc\.weight"):
            strict(X)
        assert len(changes_told(lambda: [follows(fast, net) for _ in range(2)])) == 1


def test_weights_that_count_no_versions_are_not_frozen():
    torch._dynamo.reset()
    with torch.inference_mode():
        net = Net().eval().requires_grad_(False)
        fast = npucompose.compile(net, *FUSED)
        assert "fc.weight is an inference tensor" in changes_told(lambda: follows(fast, net))[0]
        net.fc.weight.add_(1)
        follows(fast, net)
        net.double()
        assert changes_told(lambda: follows(fast, net, X.double()))[0].startswith("weights are not frozen")


@pytest.mark.slow
def test_a_function_s_weight_is_named_as_the_function_names_it():
    torch._dynamo.reset()
    weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    fast = npucompose.compile(product, *FUSED)
    assert changes_told(lambda: torch.testing.assert_close(fast(X), X @ weight)) == []
    weight.add_(1)
    (told,) = changes_told(lambda: torch.testing.assert_close(fast(X), X @ weight))
    assert "weight" in told


@pytest.mark.parametrize(("times", "kept"), [(3, 2), pytest.param(40, 8, marks=pytest.mark.slow)])
def test_nothing_of_what_was_frozen_is_kept(net: Net, times: int, kept: int):
    """More changes than Dynamo keeps versions of one function."""
    with torch._dynamo.config.patch(recompile_limit=kept):
        nothing_is_kept(net, times)


def nothing_is_kept(net: Net, times: int):
    fast = npucompose.compile(net, *FUSED)
    backend = fast.materialised.backend
    watches: list[weakref.ref[Watch]] = []
    with torch.no_grad():
        follows(fast, net)
        gc.collect()
        modules = len(PyCodeCache.modules)
        for _ in range(times):
            watches += [weakref.ref(watch) for watch in backend.frozen.watches.values()]
            write(net)
            assert len(changes_told(lambda: [follows(fast, net) for _ in range(2)])) == 1
    gc.collect()
    assert [known for known in watches if known() is not None] == []
    assert len(PyCodeCache.modules) <= modules  # those of tests before may go
    assert [c.id for c in backend.compilations] == [f"graph_{times}"]
    assert len(backend.entered_at) == times + 1, "no change compiled twice"


def test_another_model_of_the_same_class_keeps_its_graph(net: Net):
    other = Net().eval()
    fast, second = npucompose.compile(net, *FUSED), npucompose.compile(other, *FUSED)
    with torch.no_grad():
        follows(second, other)
        follows(fast, net)
    write(net)
    assert len(changes_told(lambda: [follows(fast, net), follows(second, other)])) == 1
    assert len(second.materialised.backend.entered_at) == 1


def test_a_model_that_is_gone_leaves_no_weight_behind():
    torch._dynamo.reset()
    net = Net().eval()
    fast = npucompose.compile(net, *FUSED)
    with torch.no_grad():
        fast(X)
    weight = weakref.ref(net.fc.weight)
    del net, fast
    gc.collect()
    assert weight() is None


def test_target_cuda_watches_what_it_freezes(net: Net):
    """Its way to Inductor, with tensors of the CPU: nothing of it asks for a GPU but a recording."""
    made = npucompose.materialize(*FUSED, "inductor.replay=wrapper")
    backend = Backend(
        target=CudaTarget(), mode="max-autotune", compiler=compilers.compiled, options=made.config,
        inductor=made.backend.inductor, pre=made.pre, post=made.post,
    )  # fmt: skip
    fast = backend.torch_compile(net, fullgraph=True)
    assert changes_told(lambda: follows(fast, net)) == []
    write(net)
    assert len(changes_told(lambda: follows(fast, net))) == 1


def made() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A factory for model=python: statistics that are constants."""
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval(), {"input": X}


def test_a_run_that_rewinds_its_model_freezes_once():
    from npucompose.api import checked
    from npucompose.compose.session import Session

    session = Session(checked((*FUSED, "model=python", f"model.factory={__name__}:made", "trust=true")))
    session.set_up()
    for _ in range(3):
        assert changes_told(lambda: session.call(session.compiled, session.inputs(0))) == []
        session.rewind()
    assert session.compiled_once


def test_a_weight_without_elements_is_watched_as_any_other() -> None:
    weights = [torch.zeros(0, 8), torch.ones(8)]
    watch = Watch([Weight(tensor, name, None) for tensor, name in zip(weights, ("empty", "bias"), strict=True)])
    watch.froze(set())
    assert watch.holds()
    weights[1].data.mul_(2)
    assert not watch.holds()
