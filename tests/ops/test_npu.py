"""Every operator of torch_npu on a machine without one: what defines it, gives it a form, and what calling it does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from npucompose import ops
from npucompose.errors import ConfigError
from npucompose.ops import attention, fused, meta_functions, npu
from npucompose.ops.attention import FIA, IFA
from npucompose.ops.catalogue import shipped
from npucompose.ops.definitions import UnsupportedArgument
from npucompose.targets.npu_offline import wheel
from npucompose.vendor.devices import device_of
from tests.npu.needs import offline

ops.define()
HALF: dict[str, Any] = {"dtype": torch.float16}


def nowhere() -> Path:
    raise ConfigError("no torch_npu here. Type `npucompose fetch torch_npu`.")


def test_every_operator_of_the_list_exists() -> None:
    found = {name: str(npu.overload(name)._schema) for name in shipped().schemas}
    assert all(schema.startswith(f"npu::{name}(") for name, schema in found.items())


def test_an_operator_without_a_kernel_says_that_it_can_be_explained_and_not_run() -> None:
    with pytest.raises(npu.NoKernel, match=r"torch\.ops\.npu\.npu_mish has no reference kernel: .*npucompose explain"):
        torch.ops.npu.npu_mish(torch.ones(2))
    with pytest.raises(npu.NoKernel, match="empty_with_format has no reference kernel"):
        torch.ops.npu.empty_with_format([2])


def test_without_a_wheel_a_shape_is_not_known_and_the_sentence_says_what_brings_it() -> None:
    npu.SOURCES.locate = nowhere
    words = (
        "the shapes of torch.ops.npu.npu_gelu are not known: its meta function is in the torch_npu wheel; no torch_npu"
    )
    with pytest.raises(npu.NoShape, match=words):
        torch.ops.npu.npu_gelu(torch.ones(2, device="meta"))


@offline
def test_with_a_wheel_the_form_is_its_meta_functions_and_no_torch_npu_is_left_in_the_process() -> None:
    npu.SOURCES.locate = wheel.locate
    found = torch.ops.npu.npu_gelu(torch.ones(2, 3, device="meta", **HALF))
    assert (found.shape, found.dtype) == ((2, 3), torch.float16)
    assert not [name for name in sys.modules if name.partition(".")[0] == "torch_npu"]


@offline
def test_a_device_that_the_wheel_does_not_take_the_operator_for_is_asked_as_that_device() -> None:
    """npu_mla_prolog is refused on an Ascend 950, whose number is 260."""
    root = wheel.locate() / "torch_npu"
    arguments: list[Any] = [torch.empty(1)] * 12
    on_950, on_910b = (meta_functions.load(root, soc)["npu_mla_prolog"] for soc in (260, device_of(None).number))
    with pytest.raises(RuntimeError, match="not support on this soc version"):
        on_950(*arguments)
    with pytest.raises(RuntimeError, match="token_x"):
        on_910b(*arguments)


@offline
def test_in_place_of_values_there_are_zeros_of_the_right_form_where_that_is_wanted() -> None:
    npu.SOURCES.locate = wheel.locate
    x = torch.ones(2, 3, **HALF)
    with npu.forms_for_values() as formed:
        found = torch.ops.npu.npu_gelu(x)
        assert formed == {"npu_gelu"}
        assert (found.tolist(), found.dtype) == ([[0.0] * 3] * 2, torch.float16)
        assert torch.ops.npu.npu_silu_(x) is x
        assert torch.ops.npu.npu_rms_norm(x, x[0])[0].sum() != 0  # there is a kernel
        with pytest.raises(npu.NoShape, match=r"has no meta function for torch\.ops\.npu\.npu_mish"):
            torch.ops.npu.npu_mish(x)
    with pytest.raises(npu.NoKernel):
        torch.ops.npu.npu_gelu(x)


@offline
def test_an_argument_that_only_the_kernel_refuses_has_a_form() -> None:
    npu.SOURCES.locate = wheel.locate
    q, k = torch.ones(1, 2, 4, 16, **HALF), torch.ones(1, 2, 8, 16, **HALF)
    named: dict[str, Any] = {"num_heads": 2, "input_layout": "BNSD", "quant_scale2": torch.ones(1), "sparse_mode": 4}
    with pytest.raises(UnsupportedArgument, match="'quant_scale2' is not supported here"):
        torch.ops.npu.npu_fused_infer_attention_score(q, k, k, **named)
    with npu.forms_for_values() as formed:
        out = torch.ops.npu.npu_fused_infer_attention_score(q, k, k, **named)[0]
    assert (formed, out.shape, out.dtype) == ({FIA}, (1, 2, 4, 16), torch.int8)


def test_a_form_that_a_model_registers_itself_is_taken() -> None:
    torch.library.register_fake("npu::npu_mish", lambda x: torch.empty_like(x).t(), lib=npu._LIBRARIES[0])
    with npu.forms_for_values():
        assert torch.ops.npu.npu_mish(torch.ones(2, 3)).shape == (3, 2)


# Forms that are ours beside the wheel's.


def forms_of_attention() -> Iterator[tuple[str, list[torch.Tensor], dict[str, Any]]]:
    """Every layout, with and without pages, lse, shared heads, int8 and int4."""
    sizes = {"B": 2, "N": 4, "S": 3, "D": 16, "T": 5, "H": 64}
    layouts = itertools.product(attention.LAYOUTS, (4, 2), (False, True), ("plain", "quant", "int8", "int4", "rope"))
    for layout, kv_heads, lse, kind in layouts:
        inner = layout.partition("_")[0]
        query = torch.empty([sizes[letter] for letter in inner], device="meta", **HALF)
        cache = {**sizes, "N": kv_heads, "S": 7, "T": 11, "H": kv_heads * 24, "D": 24}
        dense = torch.empty([cache[letter] for letter in inner], device="meta", **HALF)
        pages = [[9, 8, kv_heads * 24], [9, kv_heads, 8, 24], [9, kv_heads, 2, 8, 16]]
        table = torch.empty(2, 3, dtype=torch.int32, device="meta")
        named: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": kv_heads, "input_layout": layout}
        named |= {"softmax_lse_flag": lse} if lse else {}
        named |= {"quant_scale2": torch.empty(1, device="meta")} if kind == "quant" else {}
        query = query.to(torch.int8) if kind in ("int8", "rope") else query
        named |= {"query_rope": torch.empty(1, dtype=torch.bfloat16, device="meta")} if kind == "rope" else {}
        for value in (dense, *(torch.empty(shape, device="meta", **HALF) for shape in pages)):
            value = value.to(torch.int32) if kind == "int4" else value
            paged = {} if value.shape == dense.shape else {"block_table": table, "block_size": 8}
            yield FIA, [query, value, value], {**named, **paged}


@offline
def test_forms_of_attention_are_those_of_the_wheel() -> None:
    theirs = meta_functions.load(wheel.locate() / "torch_npu", device_of(None).number)
    compared = 0
    for name, tensors, named in forms_of_attention():
        ours, wheels = attention.METAS[name](*tensors, **named), theirs[name](*tensors, **named)
        told = [[(tuple(t.shape), t.dtype, t.stride()) for t in found] for found in (ours, wheels)]
        assert told[0] == told[1], (name, named)
        compared += 1
    assert compared == 1120
    for layout, dtype, scale in itertools.product(("BSH", "BSND", "BNSD"), (torch.float16, torch.int8), (None, 1)):
        query = torch.empty((2, 1, 64) if layout == "BSH" else (2, 1, 4, 16), dtype=dtype, device="meta")
        query = query if layout != "BNSD" else query.reshape(2, 4, 1, 16)
        more = {} if scale is None else {"quant_scale2": torch.empty(1, device="meta")}
        given: dict[str, Any] = {"num_heads": 4, "input_layout": layout, **more}
        ours, wheels = (found(query, query, query, **given) for found in (attention.METAS[IFA], theirs[IFA]))
        assert (ours.shape, ours.dtype, ours.stride()) == (wheels.shape, wheels.dtype, wheels.stride())


@offline
def test_forms_of_the_other_fused_operators_are_those_of_the_wheel() -> None:
    theirs = meta_functions.load(wheel.locate() / "torch_npu", device_of(None).number)
    x, gamma = torch.empty(2, 3, 16, device="meta", **HALF), torch.empty(16, device="meta", **HALF)
    calls: dict[str, list[Any]] = {
        "npu_rms_norm": [x, gamma], "npu_add_rms_norm": [x, x, gamma], "npu_swiglu": [x], "npu_rotary_mul": [x, x, x],
    }  # fmt: skip
    assert calls.keys() == fused.KERNELS.keys()
    for name, given in calls.items():
        found = [torch.utils._pytree.tree_leaves(each[name](*given)) for each in (fused.METAS, theirs)]
        told = [[(t.shape, t.dtype, t.stride()) for t in one] for one in found]
        assert told[0] == told[1], name
