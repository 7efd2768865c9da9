"""Sizes as a person writes and reads them."""

from __future__ import annotations

import pytest

from npucompose.errors import ConfigError
from npucompose.schema.sizes import MemoryBound, as_bytes
from npucompose.schema.streams import Streams
from npucompose.table.structure import structure


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512MiB", 512 << 20),
        ("1.5 KiB", 1536),
        ("2GiB", 2 << 30),
        ("7B", 7),
        ("1TiB", 1 << 40),
        ("1.2x", 120),
    ],
)
def test_a_bound_is_a_size_or_a_multiple_of_one_stream(text: str, nbytes: int) -> None:
    assert MemoryBound.from_text(text).nbytes(100) == nbytes
    assert Streams(max_memory=text).memory_bound == MemoryBound.from_text(text)


@pytest.mark.parametrize("text", ["512", "512MB", "0x", "0.0MiB", "-1MiB", "x", "1.2", "1e3MiB", "٣MiB", "1MiB\n"])
def test_anything_else_is_refused_with_an_example_of_each(text: str) -> None:
    with pytest.raises(ConfigError, match=r"'max_memory' must be a size such as 512MiB or a multiple .* such as 1.2x"):
        structure(Streams, {"max_memory": text}, "streams")


def test_one_stream_that_is_not_planned_has_no_bound() -> None:
    with pytest.raises(ValueError, match="'kind: none' plans nothing: remove 'max_memory'"):
        Streams(kind="none", max_memory="1x")


def test_bytes_are_read_in_the_unit_that_fits() -> None:
    assert [as_bytes(n) for n in (0, 1023, 9421, 1 << 20, 3 << 30, 5 << 40)] == [
        "0 B", "1023 B", "9.2 KiB", "1.0 MiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip
