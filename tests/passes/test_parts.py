"""A part of a graph as a graph of its own, held to a promise once."""

from __future__ import annotations

import pytest
import torch

from npucompose.errors import PassError
from npucompose.passes import proof
from npucompose.passes.base import Promise
from npucompose.passes.proof import PartProofs, Proof, part
from tests.sample_graphs import aten, node, traced

X = torch.ones(3)
EXACT = Promise(exact=True)


def made(function: object) -> torch.fx.GraphModule:
    return traced(function, X)  # type: ignore[arg-type]


def test_a_part_takes_its_inputs_and_gives_its_results() -> None:
    graph = made(lambda x: (x.neg() * 2 + 1).exp()).graph
    neg, mul, add = (node(graph, name) for name in ("neg", "mul", "add"))
    cut = part([neg], [mul, add], [add, mul])
    assert [value.tolist() for value in cut(X)] == [[3.0] * 3, [2.0] * 3]
    (given,) = cut.graph.find_nodes(op="placeholder")
    assert given.name == "neg"
    assert given.meta["val"] is neg.meta["val"]


def test_equal_places_of_a_rule_are_compared_once_and_the_largest_difference_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = iter((0.5, 0.25, 2.0))
    monkeypatch.setattr(proof, "prove", lambda *given: Proof(inputs=1, max_abs_err=next(found)))
    proofs = PartProofs()
    before, other = made(torch.relu), made(torch.abs)
    for name, place in (("a", before), ("a", before), ("a", other), ("b", before)):
        proofs.hold(name, "there", place, before, EXACT)
    assert proofs.errors == {"a": 0.5, "b": 2.0}


def test_a_place_that_breaks_its_promise_is_told() -> None:
    with pytest.raises(PassError, match=r"^there: on random inputs output 0 differs by up to"):
        PartProofs().hold("a", "there", made(torch.relu), made(torch.abs), EXACT)
    proofs = PartProofs()
    proofs.hold("a", "there", made(aten.relu.default), made(aten.relu.default), EXACT)
    assert proofs.errors == {"a": 0.0}
