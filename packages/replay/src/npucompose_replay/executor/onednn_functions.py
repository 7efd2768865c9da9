"""Where oneDNN's functions lie in the torch that is installed, as a header for the native replayer's sources.

libtorch_cpu carries oneDNN and torch's wheels carry its headers (`oneapi/dnnl/dnnl.h`), but the library exports none of
its functions. Its table of symbols says all the same where they are. A distance within one file of torch holds for that
very file, to which a built extension belongs (`build.folder`, `build.prebuilt`). Without `nm`, which comes with GNU's
and LLVM's compilers, or without a table, what would call them is left out and torch's operators are used.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ANCHOR = "_ZN2at6native20data_ptr_from_mkldnnERKNS_6TensorE"
"""`at::native::data_ptr_from_mkldnn`, which torch exports; distances are counted from it."""
FUNCTIONS = (
    "dnnl_version",
    "dnnl_engine_create",
    "dnnl_stream_create",
    "dnnl_stream_destroy",
    "dnnl_memory_create",
    "dnnl_memory_destroy",
    "dnnl_memory_set_data_handle",
    "dnnl_memory_desc_create_with_tag",
    "dnnl_memory_desc_destroy",
    "dnnl_memory_desc_get_size",
    "dnnl_post_ops_create",
    "dnnl_post_ops_destroy",
    "dnnl_post_ops_append_sum",
    "dnnl_post_ops_append_binary",
    "dnnl_post_ops_append_eltwise",
    "dnnl_primitive_attr_create",
    "dnnl_primitive_attr_destroy",
    "dnnl_primitive_attr_set_post_ops",
    "dnnl_primitive_attr_set_scratchpad_mode",
    "dnnl_convolution_forward_primitive_desc_create",
    "dnnl_deconvolution_forward_primitive_desc_create",
    "dnnl_inner_product_forward_primitive_desc_create",
    "dnnl_primitive_desc_query_md",
    "dnnl_primitive_desc_destroy",
    "dnnl_primitive_create",
    "dnnl_primitive_destroy",
    "dnnl_primitive_execute",
)
TIME_LIMIT_S = 120.0


def header(library: Path) -> str:
    """`onednn_functions.inc` for the libtorch_cpu at `library`: X(function, its distance in bytes) for each of them;
    nothing is defined where one is not found, or `nm` is not there or fails."""
    places = _places(library)
    lines = ["#pragma once"]
    if set(places) == {ANCHOR, *FUNCTIONS}:
        table = " \\\n".join(f"  X({name}, {places[name] - places[ANCHOR]})" for name in FUNCTIONS)
        lines += ["#define NPUCOMPOSE_ONEDNN(X) \\", table]
    return "\n".join((*lines, ""))


def _places(library: Path) -> dict[str, int]:
    """{function: its address in the file}, of those that have one."""
    nm = shutil.which("nm") or shutil.which("llvm-nm")
    if nm is None:
        return {}
    wanted, found = {ANCHOR, *FUNCTIONS}, dict[str, int]()
    try:
        done = subprocess.run(
            [nm, "--defined-only", str(library)], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        address, _, name = line.split(" ", 2) if line.count(" ") >= 2 else ("", "", "")
        if name in wanted:
            found[name] = int(address, 16)
    return found
