"""What the SoC has not is an error that names it, before anything runs."""

from __future__ import annotations

import pytest
from attrs import evolve

from npucompose.compose.check import Checked, check
from npucompose.compose.legality import DEVICE_RULES
from npucompose.compose.legality_case import LegalityCase, judged
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError, PlanError
from npucompose.vendor.devices import ATLAS_A2

B4 = "target.soc=Ascend910B4"
REGION = "passes.core_limit.regions=[{aicore: %d, vectorcore: %d, match: {target: aten.mm}}]"
STREAM = "streams.plan=[{stream: s, cores: {aicore: %d, vectorcore: %d}, match: {target: aten.abs}}]"
WAYS = {
    "passes.core_limit.regions[0]": ("passes=core_limit", REGION),
    "streams.plan[0].cores": ("passes=stream_plan", "streams=mm_abs_sub", STREAM),
    "compiler.ge_config.aicore_num": ("compiler.ge_config.aicore_num=%d|%d",),
}


def checked(*overrides: str) -> Checked:
    return check(compose(overrides), with_model=False)


def limited(way: str, aicore: int, vectorcore: int) -> tuple[str, ...]:
    return ("mode=max-autotune", *(text % (aicore, vectorcore) if "%" in text else text for text in WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cores", [(24, 48), (21, 40), (20, 41)])
def test_more_cores_than_the_soc_has_are_refused_however_they_are_said(way: str, cores: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"Ascend910B4 has 20 cube and 40 vector cores") as caught:
        checked(B4, *limited(way, *cores))
    assert caught.value.problems[0].startswith(f"{way} asks for {cores[0]} cube and {cores[1]} vector cores")


@pytest.mark.parametrize("way", WAYS)
def test_all_the_cores_that_the_soc_has_are_taken(way: str) -> None:
    checked(B4, *limited(way, 20, 40))
    checked("target.soc=Ascend910B1", *limited(way, 24, 48))


def test_the_pass_itself_refuses_what_the_device_has_not() -> None:
    """Also where no SoC was named, and where the pass is used without an experiment."""
    import torch

    from npucompose.passes.scopes import CoreLimit
    from npucompose.schema.capabilities import Capabilities
    from npucompose.schema.streams import CoreRegion, Match

    can = Capabilities(target="npu", mode="max-autotune", core_limits=True)
    region = CoreRegion(aicore=24, vectorcore=48, match=Match(target="aten.mm"))
    graph = torch.fx.Graph()
    with pytest.raises(PlanError, match="B4 has 20 cube and 48 vector cores"):
        CoreLimit(regions=(region,)).rewrite(graph, evolve(can, device_model=evolve(ATLAS_A2, name="B4", cube=20)))


def told(*overrides: str) -> dict[str, str]:
    return {one.option: one.why for one in checked(*overrides).effective}


SINK = "compiler.experimental_config.tiling_schedule_optimize"


def test_tiling_that_the_soc_does_not_sink_is_told_for_every_graph() -> None:
    sink = ("mode=max-autotune", "tiling=sink", "model=add", "target=null_device")
    made = checked(*sink, "target.soc=Ascend310P3")
    (why,) = [one.why for one in judged(DEVICE_RULES, LegalityCase(experiment=made.experiment, target=made.target))]
    assert why.startswith("Ascend310P3 (Atlas inference) cannot compute tiling on the device: ATC")
    assert why in [one.why for one in made.effective]
    assert "cannot compute tiling" not in told(*sink, B4)[SINK], "an Atlas A2 sinks it"
    with pytest.raises(ConfigError, match=r"tiling_schedule_optimize=true: Ascend310P3 .* cannot compute tiling"):
        judged(DEVICE_RULES, LegalityCase(experiment=evolve(made.experiment, strict="all"), target=made.target))


def test_a_capture_on_a_soc_that_captures_nothing_is_told_and_an_error_where_torchair_runs() -> None:
    capture = ("mode=npugraph_ex", "target.soc=Ascend310B1")
    assert "captures no graphs" in told(*capture, "target=cpu")["mode"]
    assert "mode" not in told("mode=npugraph_ex", "target.soc=Ascend310P3", "target=cpu")
    assert "mode" not in told("mode=max-autotune", "target.soc=Ascend310B1", "target=cpu")
    with pytest.raises(ConfigError, match=r"mode=npugraph_ex: Ascend310B1 .* captures no graphs"):
        checked(*capture, "target=npu")
