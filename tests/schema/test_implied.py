"""What an option demands of the caller is said by `explain` where it acts, and nowhere else."""

from __future__ import annotations

import pytest

from npucompose.api import checked
from npucompose.vendor.compiler import IMPLIED, CompilerOptions, implied_by


@pytest.mark.parametrize(
    ("mode", "option", "says"),
    [
        ("max-autotune", "experimental_config.frozen_parameter", True),
        ("reduce-overhead", "experimental_config.frozen_parameter", True),
        ("npugraph_ex", "npugraph_ex.frozen_parameter", True),
        ("max-autotune", "npugraph_ex.frozen_parameter", False),
    ],
)
def test_frozen_parameter_says_that_nobody_checks_addresses(mode: str, option: str, says: bool):
    options = checked([f"mode={mode}", f"compiler.{option}=true", "strict=off"]).experiment.compiler
    told = implied_by(options, mode)
    assert len(told) == says
    assert all(f"compiler.{option}=true: TorchAir reads parameters" in sentence for sentence in told)


def test_what_was_not_asked_for_implies_nothing():
    assert implied_by(checked(["mode=max-autotune"]).experiment.compiler, "max-autotune") == ()


def test_every_option_that_is_told_is_a_switch_that_is_off():
    assert {CompilerOptions()[option] for option in IMPLIED} == {False}
