"""A target that another package registers is asked what it can do: its name is known to nobody."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from attrs import frozen

from npucompose.compose import check as checking
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.recipe.compilations import Facts
from npucompose.recipe.imported import _collectives
from npucompose.registry import Registry
from npucompose.targets.base import Target
from npucompose.targets.cuda import CudaTarget
from npucompose.targets.npu import NpuTarget

SOC = "ascend310b"
GEARS = ["mode=max-autotune", "shapes=dynamic", "shapes.gears={x.0: [2, 4]}"]


@frozen(kw_only=True)
class MyNpu(NpuTarget):
    name: ClassVar[str] = "my_npu"

    def check(self, mode: str) -> None:
        Target.check(self, mode)


@frozen(kw_only=True)
class MyGpu(CudaTarget):
    name: ClassVar[str] = "my_gpu"

    def check(self, mode: str) -> None:
        Target.check(self, mode)


MINE = {"my_npu": "MyNpu", "my_gpu": "MyGpu"}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What an installed package would bring: each class, and its conf/target/….yaml."""
    group = "npucompose.targets"
    points = {name: EntryPoint(name=name, value=f"{__name__}:{cls}", group=group) for name, cls in MINE.items()}
    installed = Registry._installed  # private: a package that is not installed

    def with_mine(self: Registry[object]) -> dict[str, EntryPoint]:
        return {**installed(self), **(points if self.group == group else {})}

    monkeypatch.setattr(Registry, "_installed", with_mine)  # private: a package that is not installed
    (tmp_path / "target").mkdir()
    for name in MINE:
        (tmp_path / "target" / f"{name}.yaml").write_text(f"# mine\nname: {name}\n")
    return str(tmp_path)


def checked(folder: str, *overrides: str) -> Checked:
    return check(compose(["model=add", "target=my_npu", *overrides], config_dirs=[folder]))


def test_gears_act_on_a_subclass_of_the_npu(folder: str) -> None:
    assert [one for one in checked(folder, *GEARS, "strict=all").effective if one.option == "shapes.gears"] == []
    with pytest.raises(ConfigError, match="gears have no meaning on target=cpu"):
        check(compose(["model=add", *GEARS, "strict=all"]))


def test_a_soc_that_captures_nothing_is_an_error_where_the_vendor_s_compiler_runs(folder: str) -> None:
    options = ["mode=npugraph_ex", f"target.soc={SOC}"]
    with pytest.raises(ConfigError, match="captures no graphs"):
        checked(folder, *options)
    listed = check(compose(["model=add", *options])).effective
    assert "mode" in [one.option for one in listed]


def test_only_the_version_that_is_found_can_be_asked_for_where_the_vendor_s_compiler_runs(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(version="2.13.0", by="a test", tree=None)
    monkeypatch.setattr(checking, "found_here", lambda: found)
    with pytest.raises(ConfigError, match=r"runs the genuine classes of torch_npu 2\.13\.0, found by a test"):
        checked(folder, "mode=max-autotune", "compiler.torch_npu_version=2.9.0")
    check(compose(["model=add", "mode=max-autotune", "compiler.torch_npu_version=2.9.0"]))


def test_a_subclass_is_exported_as_a_kit_and_takes_its_options_from_a_script_as_the_npu_does(folder: str) -> None:
    assert MyNpu.without_device == "npu_offline"
    tree = {"target": {"name": "my_npu"}}
    assert _collectives("max-autotune", tree, Facts(hcom=[(3, "torchair.patch_for_hcom()", "")])) == []
    assert tree == {"target": {"name": "my_npu", "patch_for_hcom": True}}


def test_options_of_inductor_act_on_a_subclass_that_says_it_is_that_device(folder: str) -> None:
    def idle(target: str) -> list[str]:
        words = ["model=add", f"target={target}", "mode=max-autotune", "inductor.triton.cudagraphs=true"]
        return [one.option for one in check(compose(words, config_dirs=[folder])).effective]

    assert "inductor.triton.cudagraphs" not in idle("my_gpu")
    assert "inductor.triton.cudagraphs" in idle("cpu")
