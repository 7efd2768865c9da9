"""Tensors of other programs' files, up to their limits; folders of them, in the order of their calls."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npucompose.errors import ConfigError
from npucompose.results.artefacts import DumpedValue
from npucompose_devtools.device_files import tensor_dumps, tensors

GIB = 2**30


def header(shape: tuple[int, ...], version: int, dtype: str = "|u1") -> bytes:
    out = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "|b1", ">i8", "|u1", "<c8", ">c16"])
def test_numbers_are_what_numpy_wrote_in_either_order_of_bytes_and_dimensions(
    dtype: str, order: Any, tmp_path: Path
) -> None:
    array = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", array)
    found = tensors.load(tmp_path / "x.npy")
    assert found.shape == (2, 3)
    assert np.array_equal(found.numpy(), array)
    assert found.numpy().dtype == array.dtype.newbyteorder("=")
    found[0, 0] = 1  # its memory is its own
    assert np.array_equal(np.load(tmp_path / "x.npy"), array)


@pytest.mark.parametrize("version", [1, 2])
def test_both_forms_of_a_header_are_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(header((2, 2), version) + bytes([1, 2, 3, 4]))
    assert tensors.load(tmp_path / "x.npy").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,) * 32])
def test_no_element_no_dimension_and_as_many_dimensions_as_there_may_be_are_read(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(header(shape, 1) + bytes(int(np.prod(shape))))
    assert tuple(tensors.load(tmp_path / "x.npy").shape) == shape


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header((1,) * 33, 1) + b"\0", "says a shape that no tensor has"),
        (header((-1,), 1), "says a shape that no tensor has"),
        (header((4,), 1) + b"\0" * 3, "says 4 bytes of elements and has 3: it is cut off"),
        (header((4,), 1) + b"\0" * 5, "says 4 bytes of elements and has 5: it is cut off"),
        (header((1,), 1, "<M8[s]") + b"\0" * 8, "and no numbers: it is not read"),
        (header((1,), 1, "<U1") + b"\0" * 4, "and no numbers: it is not read"),
    ],
)
def test_another_shape_length_or_kind_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        tensors.load(tmp_path / "x.npy")
    assert says in str(refused.value)


@pytest.mark.parametrize(("nbytes", "says"), [(GIB, r"is no \.npy file"), (GIB + 1, "a file of more than 1,073,741,")])
def test_a_file_has_at_most_a_gibibyte(nbytes: int, says: str, tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        file.truncate(nbytes)  # takes no room
    with pytest.raises(ConfigError, match=says):
        tensors.load(tmp_path / "x.npy")


@pytest.mark.parametrize("made", [torch.tensor(2.5), torch.arange(6.0).reshape(2, 3).t(), torch.zeros(0)])
def test_a_tensor_of_torchs_own_is_read_without_its_gradient(made: torch.Tensor, tmp_path: Path) -> None:
    torch.save(made.clone().requires_grad_(True), tmp_path / "x.pt")
    found = tensors.load(tmp_path / "x.pt")
    assert torch.equal(found, made)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (torch.eye(3).to_sparse(), "and one dense tensor is read"),
        (torch.zeros(2, device="meta"), "and one dense tensor is read"),
        ({"x": torch.zeros(2)}, "holds a dict, and one dense tensor is read"),
        (torch.zeros(1).expand(GIB // 4), None),
        (torch.zeros(1).expand(GIB // 4 + 1), "holds a tensor of more than 1,073,741,824 bytes"),
    ],
)  # fmt: skip
def test_one_dense_tensor_of_a_gibibyte_is_the_most(held: Any, says: str | None, tmp_path: Path) -> None:
    torch.save(held, tmp_path / "x.pt")
    if says is None:
        assert tensors.load(tmp_path / "x.pt").shape == held.shape
        return
    with pytest.raises(ConfigError) as refused:
        tensors.load(tmp_path / "x.pt")
    assert says in str(refused.value)


def test_what_describes_tensors_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    """A list of numbers is no tensor, however long; a longer one is not even looked at."""
    found: list[str] = []
    for count in (2**20 // 5 - 100, 2**20 // 5 + 100):  # five bytes each
        torch.save(list(range(70_000, 70_000 + count)), tmp_path / "x.pt")
        found.append(refused(tmp_path / "x.pt"))
    assert found[1] == "describes its tensors in more than 1,048,576 bytes: it is not read."
    assert found[0] == "holds a list, and one dense tensor is read."


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        tensors.load(path)
    return str(error.value).removeprefix(f"{path} ")


def archive(path: Path, described: bytes, method: int = zipfile.ZIP_STORED, **parts: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as inside:
        for name, content in {"data.pkl": described, "byteorder": b"little", **parts}.items():
            inside.writestr(f"x/{name}", content)
    return path


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.how = function, arguments

    def __reduce__(self) -> Any:
        return self.how


def saved(value: Any) -> bytes:
    """What describes a value in a file of torch.save."""
    out = io.BytesIO()
    torch.save(value, out)
    with zipfile.ZipFile(out) as inside:
        return inside.read("archive/data.pkl")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Calls(bytearray, 2**50), "holds __builtin__.bytearray, and one dense tensor is read."),
        (Calls(bytearray, 3 * 2**30), "holds __builtin__.bytearray, and one dense tensor is read."),
        (Calls(open, "/etc/passwd"), "holds io.open, and one dense tensor is read."),
        (Calls(eval, "1"), "holds __builtin__.eval, and one dense tensor is read."),
        (1.5, "holds something else than tensors (BINFLOAT), and one dense tensor is read."),
        ("x" * 1000, "holds a str, and one dense tensor is read."),
    ],
)  # fmt: skip
def test_nothing_in_a_file_is_called(value: Any, says: str, tmp_path: Path) -> None:
    assert refused(archive(tmp_path / "x.pt", saved(value))).endswith(says)


@pytest.mark.parametrize("change", [
    ("K\x04", "K\x05"), ("K\x04", "J\xff\xff\xff\x7f"), ("X\x01\0\0\x000", "X\x01\0\0\x001"),
    ("K\x04\x85q", "\x88\x85q"), ("K\x01\x85q", "J\xff\xff\xff\xff\x85q"), ("K\x00K\x04", "K\x03K\x04"),
    ("FloatStorage", "OtherStorage"), ("ctorch\n", "cbuiltins\n"),
    ("v2", "v9"), (")R", ")o"), ("\x85q\x06", "\x86q\x06"), ("Q", "Q0"), ("(", ""), (".", ""),
])  # fmt: skip
def test_a_description_that_was_changed_is_refused_in_words(change: tuple[str, str], tmp_path: Path) -> None:
    described = saved(torch.arange(4.0)).decode("latin-1")
    assert change[0] in described
    for changed in (described.replace(*change, 1), described.replace(*change), described[: described.index(change[0])]):
        path = archive(tmp_path / "x.pt", changed.encode("latin-1"), **{"data/0": bytes(16)})
        assert refused(path).endswith(".")


def test_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    described = saved(torch.arange(4.0))
    path = archive(tmp_path / "x.pt", described, **{"data/0": bytes(15)})
    assert refused(path) == "says 4 elements and has 15 bytes: it is cut off."
    assert "packed or overlong" in refused(archive(path, described, zipfile.ZIP_DEFLATED, **{"data/0": bytes(16)}))
    assert "in another order" in refused(archive(path, described, byteorder=b"big", **{"data/0": bytes(16)}))
    assert tensors.load(archive(path, described, **{"data/0": bytes(16)})).tolist() == [0.0] * 4
    path.write_bytes(path.read_bytes().replace((16).to_bytes(4, "little"), (2**30).to_bytes(4, "little")))
    assert "packed or overlong" in refused(path)


def test_a_bare_pickle_is_refused_by_its_name_whatever_follows(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2), path, _use_new_zipfile_serialization=False)
    for more in (b"", b"PK\x05\x06" + bytes(18)):
        path.write_bytes(path.read_bytes() + more)
        assert refused(path) == "is no file of torch.save, or a bare pickle as torch before 1.6 wrote: save it anew."


@pytest.mark.parametrize(
    "made",
    [
        torch.nn.Parameter(torch.arange(3.0)), torch.tensor([1 + 2j, 3]).conj(), torch.tensor([1 + 2j]).conj().imag,
        torch.ones(3, dtype=torch.bfloat16), torch.ones(2).to(torch.float8_e4m3fn),
        torch.arange(24).view(2, 3, 4)[:, 1], torch.zeros(0, 3), torch.tensor(True), torch.ones(6, dtype=torch.uint16),
    ],
)  # fmt: skip
def test_tensors_of_every_kind_are_read_as_torch_reads_them(made: torch.Tensor, tmp_path: Path) -> None:
    torch.save(made, tmp_path / "x.pt")
    found = tensors.load(tmp_path / "x.pt")
    assert (found.dtype, found.shape) == (made.dtype, made.shape)
    assert found.tolist() == made.tolist()


@pytest.mark.parametrize("shape", [(0, 10**20), (0, 2**62, 4), (True,), (1.0,), ("a",), (-1,), (2**62, 2**62, 0)])
def test_shapes_of_npy_are_numbers_that_a_tensor_can_have(shape: tuple[object, ...], tmp_path: Path) -> None:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    says = refused(tmp_path / "x.npy")
    assert "says a shape that no tensor has" in says or "is no .npy file" in says


# Folders.


def folder(place: Path, *names: str) -> tensor_dumps.Folder:
    for name in names:
        np.save(place / name, np.zeros(1))
    found = tensor_dumps.read(place)
    assert found is not None
    assert (found.name, found.path) == (place.name, place)
    return found


def test_operators_come_in_the_order_of_their_times_and_then_of_their_names(tmp_path: Path) -> None:
    times = {"b": 20261125101500000002, "a": 20261125101500000003, "d": 20261125101500000001, "c": 20261125101500000003}
    found = folder(tmp_path, *(f"{node}-aten.abs.default.OUTPUT.0.{time}.npy" for node, time in times.items()))
    assert [one.name for one in found.operators] == ["d", "b", "a", "c"]


def test_of_a_node_that_ran_twice_the_first_call_is_read(tmp_path: Path) -> None:
    first, second = 20261125101500000001, 20261125101500000009
    names = [f"a-aten.abs.default.{slot}.{time}.npy" for time in (second, first) for slot in ("INPUT.0", "OUTPUT.0")]
    between = f"b-aten.neg.default.OUTPUT.0.{20261125101500000005}.npy"
    found = folder(tmp_path, *names, between)
    assert [one.name for one in found.operators] == ["a", "b"]
    assert found.operators[0].inputs == (DumpedValue(slot="0", file=names[2]),)
    assert found.operators[0].outputs == (DumpedValue(slot="0", file=names[3]),)
    assert torch.equal(found.load(found.operators[0].outputs[0]), torch.zeros(1, dtype=torch.float64))


def test_slots_are_ordered_as_numbers(tmp_path: Path) -> None:
    slots = ("10", "9", "2.10", "2.9", "0")
    found = folder(tmp_path, *(f"a-aten.cat.default.INPUT.{slot}.20261125101500000001.npy" for slot in slots))
    assert [one.slot for one in found.operators[0].inputs] == ["0", "2.9", "2.10", "9", "10"]


def test_ges_types_are_torchs_operators_where_they_are_known(tmp_path: Path) -> None:
    found = folder(
        tmp_path,
        "MatMulV3.MatMul_2.7.3.1764063300000001.output.0.npy",
        "Novel.Novel_1.7.3.1764063300000002.input.1.float16.npy",
        "notes.npy",
        "MatMulV3.MatMul_2.7.3.1764063300000001.workspace.0.npy",
    )
    (product, novel) = found.operators
    assert (product.name, product.operator, product.inputs) == ("MatMul_2", "mm", ())
    assert [one.slot for one in product.outputs] == ["0"]
    assert (novel.name, novel.operator, novel.outputs) == ("Novel_1", "Novel", ())
    assert [one.slot for one in novel.inputs] == ["1"]


def test_a_folder_without_such_files_is_no_dump_and_one_of_too_many_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tensor_dumps.read(tmp_path) is None
    monkeypatch.setattr(tensor_dumps, "MOST_FILES", 2)
    for name in ("a.npy", "a-aten.abs.default.OUTPUT.0.20261125101500000001.npy"):
        (tmp_path / name).touch()
    assert tensor_dumps.read(tmp_path) is not None
    (tmp_path / "b.npy").touch()
    with pytest.raises(ConfigError, match="has more than 2 files: give the folder of one step"):
        tensor_dumps.read(tmp_path)
