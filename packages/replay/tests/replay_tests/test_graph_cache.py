"""One recording for each signature, up to a limit, then one warning and eager; also behind torch.compile."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError
from npucompose_replay.front.graph_cache import GraphCache
from replay_tests.capturing import CapturingBackend, request
from tests.graph_helpers import in_threads, traced

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def doubled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2,)


def test_a_signature_is_captured_once_and_found_again():
    cache = GraphCache(request(traced(doubled, torch.ones(2))), capture_limit=4)
    for n in (2, 3, 2, 3, 3):
        assert cache([torch.ones(n)])[0].tolist() == [2.0] * n
    assert len(cache.captured) == 2
    assert cache.last is cache.captured[1]


def test_beyond_the_limit_new_signatures_run_eagerly_after_one_warning():
    cache = GraphCache(request(traced(doubled, torch.ones(2))), capture_limit=1)
    cache([torch.ones(2)])
    with pytest.warns(RuntimeWarning, match=r"capture_limit=1 .*torch\.float32\[3\]@cpu"):
        assert cache([torch.ones(3)])[0].tolist() == [2.0] * 3
    assert cache.last is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache([torch.ones(4)])[0].tolist() == [2.0] * 4
        assert cache([torch.ones(2)])[0].tolist() == [2.0] * 2
    assert cache.last is cache.captured[0]
    assert len(cache.captured) == 1


def test_the_recording_used_longest_ago_makes_place_where_that_is_wanted():
    cache = GraphCache(request(traced(doubled, torch.ones(2))), capture_limit=2, when_full="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 2, 4, 2, 4, 3):
            assert cache([torch.ones(n)])[0].tolist() == [2.0] * n
    # 4 took the place of 3, then 3 that of 2; 2 was found three times.
    assert [c.facts()["signature"] for c in cache.captured] == [("torch.float32[4]@cpu",), ("torch.float32[3]@cpu",)]
    assert cache.last is cache.captured[-1]
    assert cache.statistics.replacements == 2


def test_what_a_caller_writes_into_a_constant_result_is_in_no_later_one():
    cache = GraphCache(request(traced(lambda x: (x + 1, torch.arange(3.0)[1:]), torch.ones(2))), capture_limit=4)
    for _ in range(3):
        constant = cache([torch.ones(2)])[1]
        assert constant.tolist() == [1, 2]
        constant.fill_(9)


def test_threads_that_come_with_one_new_signature_make_one_recording():
    cache = GraphCache(request(traced(doubled, torch.ones(2))), capture_limit=4, clone_output=True)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in (2, 3, 4, 2):
            if cache([torch.full((n,), float(seed))])[0].tolist() != [2.0 * seed] * n:
                wrong.append(seed)

    in_threads(work)
    assert not wrong
    assert len(cache.captured) == 3


def test_a_thread_waits_while_another_records_its_signature(monkeypatch: pytest.MonkeyPatch):
    cache = GraphCache(request(traced(doubled, torch.ones(2))), capture_limit=4, clone_output=True)
    genuine = cache.recorded

    def slowly(inputs: list[Any]) -> Any:
        time.sleep(0.05)
        return genuine(inputs)

    monkeypatch.setattr(cache, "recorded", slowly)
    in_threads(lambda seed: cache([torch.ones(2)]))
    assert len(cache.captured) == 1


def test_another_address_of_a_static_input_is_another_recording():
    cache = GraphCache(request(traced(doubled, torch.ones(2)), frozenset({0})), capture_limit=4)
    a, b = torch.ones(2), torch.ones(2)
    for x in (a, b, a):
        cache([x])
    assert len(cache.captured) == 2


class Decoder(nn.Module):
    """A KV cache written in place at a moving position, a residual, norms: what decoding does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.register_buffer("keys", torch.zeros(16, 8))
        self.register_buffer("values", torch.zeros(16, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.norm(x)
        self.keys.index_copy_(0, at, self.k(h))
        self.values.scatter_(0, at[:, None].expand(1, 8), self.v(h))
        weights = torch.softmax(self.q(h) @ self.keys.t() * 0.35, -1)
        return x + weights @ self.values, weights


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
def test_twenty_decoding_steps_equal_eager_with_their_cache(executor: Any):
    torch.manual_seed(0)
    mine = Decoder().eval()
    theirs = Decoder().eval()
    theirs.load_state_dict(mine.state_dict())
    backend = CapturingBackend(executor=executor)
    compiled = torch.compile(mine, backend=backend)
    with torch.no_grad():
        for step in range(12):
            x, at = torch.randn(1, 8), torch.tensor([step])
            for a, b in zip(compiled(x, at), theirs(x, at), strict=True):
                assert same_bytes(a, b)
            assert same_bytes(mine.keys, theirs.keys)
            assert same_bytes(mine.values, theirs.values)
    (cache,) = backend.caches
    (captured,) = cache.captured
    assert captured.facts()["executor"] == executor
    # Both updates happen in the buffers again: no copy of a cache in the plan.
    assert not [s for s in captured.plan.steps if s.name.startswith("copy_")]


def test_sizes_as_symbols_give_a_recording_for_each_size():
    backend = CapturingBackend()
    compiled = torch.compile(lambda x: x.reshape(-1)[: x.shape[0]] * x.shape[0], backend=backend, dynamic=True)
    with torch.no_grad():
        for n in (3, 5, 3, 7):
            x = torch.randn(n, 4)
            assert same_bytes(compiled(x), x.reshape(-1)[:n] * n)
    assert [len(c.captured) for c in backend.caches] == [3]


def test_aliased_outputs_and_views_of_inputs_come_through_torch_compile():
    def views(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        return y, y.t(), x[1:], x, {"twice": [y, 3]}

    compiled = torch.compile(views, backend=CapturingBackend())
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 3)
            got, expected = compiled(x), views(x)
            for a, b in zip(got[:4], expected[:4], strict=True):
                assert same_bytes(a, b)
            assert got[2].data_ptr() == x[1:].data_ptr()
            assert got[1].data_ptr() == got[0].data_ptr()
            assert got[4]["twice"][1] == 3


def test_overlapping_arguments_of_which_one_is_written_come_through_torch_compile():
    def shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    compiled = torch.compile(shift, backend=CapturingBackend())
    with torch.no_grad():
        for _ in range(3):
            mine = torch.randn(6)
            theirs = mine.clone()
            assert same_bytes(compiled(mine[:4], mine[2:]), shift(theirs[:4], theirs[2:]))
            assert same_bytes(mine, theirs)


def test_dropout_draws_eagers_numbers_behind_torch_compile():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = torch.compile(model, backend=CapturingBackend())
    with torch.no_grad():
        x = torch.randn(3, 4)
        torch.manual_seed(1)
        expected = [model(x).clone() for _ in range(3)]
        torch.manual_seed(1)
        for one in expected:
            assert same_bytes(compiled(x), one)


def test_a_data_dependent_model_is_refused_with_its_line_where_nothing_may_be_cut():
    def bad(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() + 1

    compiled = torch.compile(bad, backend=CapturingBackend(partial="refuse"))
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        torch.no_grad(),
        pytest.raises(CaptureError) as error,
    ):
        compiled(torch.ones(3))
    assert "aten.nonzero.default" in str(error.value)
    assert "test_graph_cache.py" in str(error.value)
    assert "return x.nonzero() + 1" in str(error.value)
