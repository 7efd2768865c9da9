"""Whose source decides a result: what is chosen outside of the product counts with its code, too."""

from __future__ import annotations

from typing import Any

import npucompose_extras.ascend_dialects  # noqa: F401  (its package's source is found where it is loaded from)
from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.experiment.job import RESULT_PACKAGES, _code, source_of


class Chosen:
    """A stage of an extension."""

    __module__ = "npucompose_extras.ascend_dialects"


def test_a_stage_of_an_extension_counts_with_all_the_source_beside_it() -> None:
    checked = check(compose(["model=add"]))
    stage: Any = Chosen()
    assert source_of(Chosen) == "npucompose_extras"
    without, with_it = _code(checked, [], {}), _code(checked, [stage], {})
    assert set(RESULT_PACKAGES) < set(without)
    assert set(with_it) - set(without) == {"npucompose_extras"}
