"""shapes.gears: GE's sizes of a dimension, refused where nothing could take them."""

from __future__ import annotations

import pytest
import torch

from npucompose.compose.calls import apply_shapes
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.schema.experiment import Shapes

GEARS = "+shapes.gears={x.0:[2,4]}"


def checked(*overrides: str) -> Checked:
    return check(compose(["model=add", GEARS, *overrides]))


def test_they_need_dynamic_shapes_and_at_least_two_sizes() -> None:
    with pytest.raises(ConfigError, match="needs dynamic shapes: write shapes=dynamic"):
        checked("mode=max-autotune")
    with pytest.raises(ConfigError, match=r"'y\.0' takes 2 to 100 sizes of at least 2 .*; given \[3\]\."):
        checked("mode=max-autotune", "shapes=dynamic", "+shapes.gears={y.0:[3]}")
    with pytest.raises(ConfigError, match=r"'y\.0' takes 2 to 100 sizes of at least 2"):
        checked("mode=max-autotune", "shapes=dynamic", f"+shapes.gears={{y.0:{list(range(2, 103))}}}".replace(" ", ""))


def test_a_gear_below_two_is_refused_with_the_gears_that_are_left() -> None:
    with pytest.raises(ConfigError, match=r"given \[1, 2, 4\]: write \[2, 4\]\."):
        checked("mode=max-autotune", "shapes=dynamic", "+shapes.gears={x.0:[1,2,4]}")


def test_they_need_one_whole_graph() -> None:
    with pytest.raises(ConfigError, match=r"needs one whole graph: write compile\.fullgraph=true"):
        checked("mode=max-autotune", "shapes=dynamic", "compile.fullgraph=false")


def test_gears_of_several_dimensions_are_paired_or_crossed_up_to_a_hundred() -> None:
    policy = "compiler.inference_config.dynamic_gears_merge_policy"
    two = "+shapes.gears={x.0:[2,4],x.1:[2,4,8]}"
    base = ["model=add", "mode=max-autotune", "shapes=dynamic"]
    with pytest.raises(ConfigError, match=r"gives \[2, 3\] sizes, and .*=zip pairs them"):
        check(compose([*base, two]))
    check(compose([*base, two, f"{policy}=product"]))
    many = f"+shapes.gears={{x.0:{list(range(2, 13))},x.1:{list(range(2, 13))}}}".replace(" ", "")
    with pytest.raises(ConfigError, match="makes 121 combinations"):
        check(compose([*base, many, f"{policy}=product"]))


def test_a_mode_that_captures_refuses_them_and_a_laptop_lists_them() -> None:
    with pytest.raises(
        ConfigError, match="gears have no effect in mode=reduce-overhead; they take effect in: max-autotune"
    ):
        checked("mode=reduce-overhead", "shapes=dynamic")
    (entry,) = checked("mode=max-autotune", "shapes=dynamic").effective
    assert (entry.option, entry.effective) == ("shapes.gears", None)
    with pytest.raises(ConfigError, match="no meaning on target=cpu"):
        checked("mode=max-autotune", "shapes=dynamic", "strict=all")


def test_they_are_told_to_the_device_by_argument_and_dimension() -> None:
    told: list[tuple[torch.Size, dict[int, list[int]]]] = []
    policy = Shapes(dynamic=True, gears={"x.0": (2, 4), "x.1": (3, 5)})
    apply_shapes(policy, {"x": torch.ones(4, 3)}, lambda tensor, gears: told.append((tensor.shape, gears)))
    assert told == [(torch.Size([4, 3]), {0: [2, 4], 1: [3, 5]})]


@pytest.mark.parametrize(
    ("key", "words"), [("z.0", "is no input.dimension"), ("x.7", "is no input.dimension"), ("x.1", "size 3, which is")]
)
def test_what_fits_no_input_is_refused_by_name(key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' @ shapes.gears.*{words}"):
        apply_shapes(Shapes(dynamic=True, gears={key: (2, 4)}), {"x": torch.ones(4, 3)})
