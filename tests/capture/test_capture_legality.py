"""Forty mistakes are found with their rule, code, line and fix; forty models that only look like them are captured."""

from __future__ import annotations

import pytest
import torch

from npucompose.capture import rules
from tests.capture import copy_models, host_models, stream_models
from tests.capture.seeded import FAULTS, NEAR_MISSES, Fault, Legal, captured

assert copy_models
assert host_models
assert stream_models


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.model.__name__)
def test_a_mistake_is_found_at_its_line_with_code_and_fix(fault: Fault) -> None:
    facts = captured(fault.model, traced=fault.traced, **fault.options)
    (found,) = facts.findings
    assert (found.rule, found.code) == (fault.rule, fault.code)
    assert found.source is not None
    assert found.source.endswith("# here")
    assert fault.fix in found.fix
    assert (facts.verdict, facts.certainty) == ("does not capture", "proven")


@pytest.mark.parametrize("near", NEAR_MISSES, ids=lambda near: near.model.__name__)
def test_what_only_looks_like_a_mistake_gives_no_alarm(near: Legal) -> None:
    facts = captured(near.model, traced=near.traced, **near.options)
    assert facts.findings == ()
    assert (facts.verdict, facts.certainty) == ("captures", "proven"), facts.evidence
    assert near.unlike in rules().rules


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.model.__name__)
def test_a_fault_cites_a_thread_or_document_of_its_rule(fault: Fault) -> None:
    assert fault.cites
    assert rules().of(fault.rule).code == fault.code


def test_a_model_that_ends_in_an_error_of_its_own_has_no_counts() -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            raise ValueError(f"no route for {tuple(y.shape)}")

    facts = captured(Raises)
    assert (facts.verdict, facts.streams, facts.tasks) == ("unknown", None, None)
