"""Which dtypes hold every value of which others, all pairs written out."""

from __future__ import annotations

import itertools

import pytest
import torch

from npucompose.passes.metadata import is_integer, loses_nothing

HOLDS: dict[str, str] = {
    "float64": "float64 float32 float16 bfloat16 int32 int16 int8 uint32 uint16 uint8",
    "float32": "float32 float16 bfloat16 int16 int8 uint16 uint8",
    "float16": "float16 int8 uint8",
    "bfloat16": "bfloat16 int8 uint8",
    "complex128": "complex128 complex64 float64 float32 float16 bfloat16 int32 int16 int8 uint32 uint16 uint8",
    "complex64": "complex64 float32 float16 bfloat16 int16 int8 uint16 uint8",
    "int64": "int64 int32 int16 int8 uint32 uint16 uint8",
    "int32": "int32 int16 int8 uint16 uint8",
    "int16": "int16 int8 uint8",
    "int8": "int8",
    "uint32": "uint32 uint16 uint8",
    "uint16": "uint16 uint8",
    "uint8": "uint8",
    "bool": "",
}


@pytest.mark.parametrize("wide", HOLDS)
def test_a_dtype_holds_these_and_every_bool(wide: str) -> None:
    found = {narrow for narrow in HOLDS if loses_nothing(getattr(torch, narrow), getattr(torch, wide))}
    assert found == {*HOLDS[wide].split(), "bool"}


def test_an_integer_is_no_float_and_no_bool() -> None:
    assert {name for name in HOLDS if is_integer(getattr(torch, name))} == {
        "".join(parts) for parts in itertools.product(("", "u"), ("int",), ("8", "16", "32"))
    } | {"int64"}
