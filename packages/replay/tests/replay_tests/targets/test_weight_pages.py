"""Pages of a mapped checkpoint that a process has not read are digested without coming into its memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from npucompose_replay.kept import weight_pages
from npucompose_replay.kept.weight_digest import digest_of
from npucompose_replay.kept.weight_pages import PAGE, PIECE, FileMapping, file_mappings, pieces

COUNT = 6 * PIECE // 4 + 1000
"""Of float32: several pieces, and no whole number of pages."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which pages are in memory")
Map = Callable[[], torch.Tensor]


@pytest.fixture
def values() -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32)


@pytest.fixture
def mapped(tmp_path: Path, values: torch.Tensor) -> Map:
    """The values from a file, as safetensors and `torch.load(mmap=True)` map it: what is written stays here."""
    values.numpy().tofile(tmp_path / "weights")
    return lambda: torch.from_file(str(tmp_path / "weights"), shared=False, size=COUNT)


def bytes_at(tensor: torch.Tensor, begin: int = 0, end: int | None = None) -> bytes:
    nbytes = (tensor.nbytes if end is None else end) - begin
    return b"".join(pieces(tensor.data_ptr() + begin, nbytes, file_mappings()))


def read_in(tensor: torch.Tensor) -> int:
    """Bytes of its pages that are in the memory of this process."""
    pages = range(tensor.data_ptr() // PAGE, -(-(tensor.data_ptr() + tensor.nbytes) // PAGE))
    return sum(not absent for absent in weight_pages._absent(pages)) * PAGE


@linux
def test_what_was_not_read_stays_out_of_memory_and_gives_the_same_digest(mapped: Map, values: torch.Tensor) -> None:
    weight = mapped()
    before = read_in(weight)
    assert digest_of([weight]) == digest_of([values])
    assert read_in(weight) == before < weight.nbytes // 2
    weight.sum()
    assert read_in(weight) >= weight.nbytes, "the count sees what is read"


@linux
def test_what_was_written_here_is_read_where_it_lies(mapped: Map, values: torch.Tensor) -> None:
    weight = mapped()
    for place in (0, COUNT // 2, COUNT - 1):
        weight[place] = values[place] = -1.5
    assert bytes_at(weight) == values.numpy().tobytes()


@linux
@pytest.mark.parametrize(
    ("begin", "end"), [(1, 3), (PAGE - 1, PAGE + 1), (5, 2 * PIECE + 7), (PIECE, PIECE), (40, None)]
)
def test_any_part_is_what_lies_there(mapped: Map, values: torch.Tensor, begin: int, end: int | None) -> None:
    weight = mapped()
    weight[PIECE // 4 : PIECE // 4 + 10] = 0
    values[PIECE // 4 : PIECE // 4 + 10] = 0
    assert bytes_at(weight, begin, end) == values.numpy().tobytes()[begin:end]


@linux
def test_files_that_were_read_are_closed(mapped: Map, values: torch.Tensor) -> None:
    weight, opened = mapped(), len(os.listdir("/proc/self/fd"))
    assert bytes_at(weight) == values.numpy().tobytes()
    assert len(os.listdir("/proc/self/fd")) == opened


@linux
@pytest.mark.parametrize("change", ["another file", "no file", "no pagemap"])
def test_memory_is_read_where_the_file_is_not_the_one_that_is_mapped(
    mapped: Map, values: torch.Tensor, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, file = mapped(), tmp_path / "weights"
    mappings = file_mappings()
    if change == "no pagemap":
        monkeypatch.setattr(weight_pages, "PAGEMAP", tmp_path / "none")
    else:
        file.unlink()
    if change == "another file":
        file.write_bytes(bytes(values.nbytes))
    assert b"".join(pieces(weight.data_ptr(), weight.nbytes, mappings)) == values.numpy().tobytes()


@linux
def test_a_file_that_is_shorter_by_now_is_not_believed(mapped: Map, values: torch.Tensor, tmp_path: Path) -> None:
    weight = mapped()
    short = tmp_path / "short"
    short.write_bytes(b"no weights")
    here = short.stat()
    mapping = FileMapping(
        begin=weight.data_ptr(), end=weight.data_ptr() + weight.nbytes, offset=0, path=str(short),
        device=here.st_dev, inode=here.st_ino,
    )  # fmt: skip
    assert b"".join(pieces(weight.data_ptr(), weight.nbytes, [mapping])) == values.numpy().tobytes()


def test_without_the_systems_word_memory_is_read(values: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_of([values])
    monkeypatch.setattr(weight_pages, "MAPS", Path("/nowhere/maps"))
    assert file_mappings() == []
    assert digest_of([values]) == expected
