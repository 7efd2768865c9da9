"""Inductor's cache keeps graphs with packed weights, by the values of all weights; a template is read once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.utils import counters
from torch._inductor import codecache, cpu_vec_isa, utils
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.freezing_utils import is_frozen_param

import npucompose
from npucompose.machine import CACHE_VARIABLE
from npucompose_replay.inductor.cache import (
    mark_packed,
    packed_weights_in_keys,
    probes_remembered,
    templates_read_once,
)
from npucompose_replay.kept import weight_digest
from npucompose_replay.kept.weight_digest import digest_of

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def test_a_digest_is_of_values_layouts_and_their_order() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.zeros(0)
    changed = a.clone()
    changed[1, 2] = 7
    others = [[a.t(), b], [b, a], [a], [a.double(), b], [changed, b], [a.reshape(3, 2), b]]
    digests = [digest_of([a, b]), *map(digest_of, others)]
    assert digest_of([a.clone(), b.clone()]) == digests[0]
    assert None not in digests
    assert len(set(digests)) == len(digests)


def test_a_digest_is_of_the_threads_that_kernels_are_timed_on() -> None:
    before, digest = torch.get_num_threads(), digest_of([torch.ones(2)])
    torch.set_num_threads(before + 1)
    try:
        assert digest_of([torch.ones(2)]) != digest
    finally:
        torch.set_num_threads(before)


def test_too_many_weights_and_odd_ones_have_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert digest_of([torch.eye(2).to_sparse()]) is None
    monkeypatch.setattr(weight_digest, "MOST_BYTES", 15)
    assert digest_of([torch.ones(4)]) is None
    assert digest_of([torch.ones(3)]) is not None


def packed() -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(torch.ones(8, 8), 2)


@needs_onednn
def test_packed_weights_have_a_key_inside_only() -> None:
    graph_module = fx.GraphModule({}, fx.Graph())

    def reduced() -> Any:
        return codecache.FxGraphCachePickler(graph_module)._reduce_tensor(packed())

    with pytest.raises(codecache.BypassFxGraphCache):
        reduced()
    with packed_weights_in_keys():
        make, given = reduced()
        assert make(*given) == ("packed", (8, 8), "torch.float32")
    with pytest.raises(codecache.BypassFxGraphCache):
        reduced()


@needs_onednn
def test_packed_weights_are_named_in_what_is_kept() -> None:
    root = nn.Module()
    root.register_buffer("packed", packed())
    root.register_buffer("plain", torch.ones(2))
    graph = fx.Graph()
    graph.output((graph.get_attr("packed"), graph.get_attr("plain")))
    module = fx.GraphModule(root, graph)
    mark_packed(module)
    assert [is_frozen_param(getattr(module, name)) for name in ("packed", "plain")] == [True, False]


def test_a_template_is_read_once_inside() -> None:
    def read() -> Any:
        return KernelTemplate._template_from_string("{{x}} and {{y}}")

    assert read() is not read()
    with templates_read_once():
        assert read() is read()
        assert read().render(x=1, y=2) == "1 and 2"
    assert read() is not read()


@pytest.mark.slow
@needs_onednn
def test_a_later_compilation_takes_what_is_kept_for_equal_weights_and_for_no_others() -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    other = copy.deepcopy(first)
    with torch.no_grad():
        other[0].weight.mul_(2)
    x, hits = torch.randn(4, 32), []
    fresh: Any = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache  # type: ignore[attr-defined]
    with fresh(), torch.no_grad():
        for model in (first, copy.deepcopy(first), other, copy.deepcopy(other)):
            torch._dynamo.reset()
            counters.clear()
            fast = npucompose.compile(model, "mode=max-autotune")
            assert torch.allclose(fast(x), model(x), atol=1e-5)
            hits.append(counters["inductor"]["fxgraph_cache_hit"])
    assert hits == [0, 1, 0, 1]


class Isa(cpu_vec_isa.VecAVX2):
    """Instructions whose trials are counted."""


@pytest.mark.parametrize("works", [True, False])
def test_instructions_that_work_are_tried_once_on_a_machine(
    works: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried: list[str] = []

    def check_build(self: Any, code: str) -> bool:
        tried.append(code)
        return works

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    for _ in range(2):
        with probes_remembered():
            assert [Isa().check_build(code) for code in ("a", "b")] == [works, works]
    assert tried == (["a", "b"] if works else ["a", "b", "a", "b"])
    assert cpu_vec_isa.VecISA.check_build is check_build
