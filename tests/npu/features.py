"""Claims about TorchAir's functions beside torch.compile, for either target (see claims.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from tests.npu.place import Place

PLAN = "streams=mm_abs_sub"
LIMIT = "passes.core_limit.regions=[{aicore:8,vectorcore:16,match:{target:aten.abs}}]"
FUSE = "passes.super_kernel.regions=[{scope:sk,match:{target:'re:aten.(abs|sub).*'}}]"
JOINT = "compiler.experimental_config.aot_config_enable_joint_graph=true"


def cores_in_ge(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mm_abs_sub", "passes=[stream_plan,core_limit]", PLAN, LIMIT)
    assert ran.status == 0
    assert ran.npu["ge_graphs"][0]["cores"] == {"Abs": "8 cube, 16 vector"}


def super_kernel_in_ge(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mm_abs_sub", "passes=[stream_plan,super_kernel]", PLAN, FUSE)
    assert ran.status == 0
    assert ran.npu["ge_graphs"][0]["super_kernels"] == {"Abs": "sk", "Sub": "sk"}


def cores_in_captures(mode: str, place: Place) -> None:
    ran = place.run(f"mode={mode}", "model=mm_abs_sub", "passes=[stream_plan,core_limit]", PLAN, LIMIT)
    assert ran.status == 0
    assert ran.npu["captures"] == 1
    assert ran.npu["core_limits"] in (2, None)  # a device does not tell
    assert ran.report["numerics"]["bitwise"]


def cache(mode: str, place: Place) -> None:
    chosen = (f"mode={mode}", "model=mlp", "compile.cache=true")
    ran = place.run(*chosen, "pipeline=compile_only")
    assert ran.status == 0
    assert (ran.npu["cache"], ran.npu["fx_graphs"]) == ("saved", 1)
    ran = place.run(*chosen)
    assert ran.status == 0
    assert (ran.npu["cache"], ran.npu["fx_graphs"]) == ("loaded", 0)
    assert ran.report["numerics"]["passed"]


def export(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mlp", "pipeline=export", "compiler.export.export_name=net")
    assert ran.status == 0
    files, air = {"dynamo.pbtxt", "options.json"}, ["net.air"]
    on_a_device = place.target == "npu"
    files.update(air if on_a_device else [])
    assert files <= set(ran.npu["files"])
    assert ran.npu["not_written"] == ([] if on_a_device else air)
    assert all((ran.folder / "torchair" / file).is_file() for file in files)
    assert len(ran.npu["ge_graphs"]) == 1


def training(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mlp", "compile.training=true")
    assert ran.status == 0
    assert len(ran.npu["ge_graphs"]) == ran.npu["fx_graphs"] == 2
    assert ran.report["numerics"]["passed"]
    assert ran.report["numerics"]["compared"] == 3 * (1 + 6 + 1)


def joint_graph(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mlp", "compile.training=true", JOINT)
    assert ran.status == 0
    assert len(ran.npu["ge_graphs"]) == ran.npu["fx_graphs"] == 1
    assert ran.report["numerics"]["passed"]


def hcom(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=add", "target.patch_for_hcom=true")
    assert ran.status == 0
    assert "all_reduce" in ran.npu["patched"]


def captured_dumps(mode: str, option: str, place: Place) -> None:
    ran = place.run(f"mode={mode}", "model=mm_abs_sub", f"compiler.{option}=true")
    assert ran.status == 0
    assert len([file for file in ran.npu["files"] if "/add_device_" in file]) == 4  # three compared, one before


FEATURES: Mapping[str, tuple[str, Callable[[Place], None]]] = {
    "ge[cores]": ("core_limit becomes attributes of GE's nodes", cores_in_ge),
    "ge[super kernel]": ("super_kernel becomes attributes of GE's nodes", super_kernel_in_ge),
    "ge[export]": ("dynamo_export writes the graph into the run directory", export),
    "ge[training]": ("a backward graph is compiled, and the gradients are eager's", training),
    "ge[joint graph]": ("forward and backward are one graph, and the gradients are eager's", joint_graph),
    "ge[hcom]": ("patch_for_hcom replaces the collectives of torch.distributed", hcom),
    **{
        f"cores[{mode}]": ("core_limit sets a stream's limit in the capture", partial(cores_in_captures, mode))
        for mode in (ACLGRAPH, NPUGRAPH_EX)
    },
    **{
        f"cache[{mode}]": ("a second process loads what the first compiled", partial(cache, mode))
        for mode in (GE, ACLGRAPH, NPUGRAPH_EX)
    },
    **{
        f"dumps[{mode}]": ("a captured graph dumps at every replay", partial(captured_dumps, mode, option))
        for mode, option in ((ACLGRAPH, "dump_config.enable_dump"), (NPUGRAPH_EX, "npugraph_ex.dump_tensor_data"))
    },
}
