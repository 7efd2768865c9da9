"""`inductor:` in YAML: where it acts, where it is refused or listed, what it does to keys and provenance."""

from __future__ import annotations

import pytest

from npucompose.api import checked as _checked
from npucompose.compose.check import Checked
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job

FUSED = "mode=max-autotune"


def checked(*overrides: str) -> Checked:
    return _checked(["model=mlp", *overrides])


def listed(*overrides: str) -> dict[str, str]:
    return {e.option: e.why for e in checked(*overrides).effective}


def test_a_declared_option_is_set_without_a_plus_and_any_other_with_one():
    made = checked(FUSED, "inductor.cpp.simdlen=256", "+inductor.cpp.no_redundant_loops=false")
    assert made.experiment.inductor.changed() == {"cpp.simdlen": 256, "cpp.no_redundant_loops": False}
    assert made.provenance["inductor.cpp.simdlen"] == "command line"
    assert made.provenance["inductor.freezing"] == "default"
    assert made.effective == ()


def test_a_typo_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"unknown key 'frezing' of inductor .* Did you mean 'freezing'"):
        checked(FUSED, "inductor.frezing=false")
    with pytest.raises(ConfigError, match=r"unknown option 'frezing' @ inductor: .* Did you mean 'freezing'"):
        checked(FUSED, "+inductor.frezing=false")


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_a_mode_without_inductor_refuses_its_options(mode: str):
    with pytest.raises(
        ConfigError, match=r"inductor\.freezing=false has no effect in .* it takes effect in: max-autotune"
    ):
        checked(f"mode={mode}", "inductor.freezing=false")
    assert "inductor.freezing" in listed(f"mode={mode}", "inductor.freezing=false", "strict=off")


def test_eager_lists_them_whatever_strict_says():
    assert "eager compiles nothing" in listed("mode=eager", "inductor.freezing=false")["inductor.freezing"]


def test_a_device_without_inductor_lists_them_and_strict_all_refuses_them():
    asked = (FUSED, "target=null_device", "inductor.cpp_wrapper=true")
    assert "whose compiler is not Inductor" in listed(*asked)["inductor.cpp_wrapper"]
    with pytest.raises(ConfigError, match=r"inductor\.cpp_wrapper=true has no meaning on target=null_device"):
        checked(*asked, "strict=all")


def test_options_of_another_device_are_listed():
    assert "it takes effect on cuda" in listed(FUSED, "inductor.triton.cudagraphs=true")["inductor.triton.cudagraphs"]


def test_weights_that_are_trained_are_no_constants():
    asked = (FUSED, "compile.training=true", "pipeline=check", "inductor.cpp.weight_prepack=false")
    assert "trained" in listed(*asked)["inductor.cpp.weight_prepack"]


def test_an_option_is_part_of_the_key_and_a_default_spelled_out_is_not():
    def key(*overrides: str) -> str:
        return Job.from_composed(compose(["model=mlp", FUSED, *overrides])).keys["compile"]

    assert key("inductor.freezing=true") == key()
    assert len({key(), key("inductor.freezing=false"), key("inductor.freezing=null"), key("target.pool=graph")}) == 4
