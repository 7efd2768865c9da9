"""Profiles of an NPU: rows of both tables, times by family and size with intervals, and how well they predict."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.results.artefacts import KernelTime, KernelTimes
from npucompose.schema.profile_table import Interval, Line, ProfileTable, SizeTimes
from npucompose.streams.calibrated import product_flops
from npucompose.vendor.devices import ATLAS_A2
from npucompose_devtools.device_files import profiles
from npucompose_devtools.device_files.kernels import operator_type, torch_operator
from npucompose_devtools.profiles.command import HeldOut, held_out
from npucompose_devtools.profiles.table import _some as some_slopes
from npucompose_devtools.profiles.table import bound, flops_per_byte, made_of, quantile, sized
from tests.answers import answer

KERNEL_DETAILS = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
)  # fmt: skip
OP_SUMMARY = tuple(
    {"Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type", "Start Time(us)": "Task Start Time(us)",
     "Duration(us)": "Task Duration(us)", "Wait Time(us)": "Task Wait Time(us)"}.get(name, name)
    for name in KERNEL_DETAILS
)  # fmt: skip
RATIO = 195.0


def table(*rows: dict[str, str], heads: tuple[str, ...] = KERNEL_DETAILS) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(heads)
    for row in rows:
        writer.writerow([row.get(name, "N/A") for name in KERNEL_DETAILS])
    return out.getvalue()


def row(
    type: str, us: float, inputs: str, output: str, core: str = "AI_VECTOR_CORE", dtype: str = "DT_BF16"
) -> dict[str, str]:
    return {
        "Name": f"aclnn{type}_{type}AiCore_{type}", "Type": type, "Accelerator Core": core, "Duration(us)": f"{us}\t",
        "Input Shapes": f'"{inputs}"', "Input Data Types": ";".join([dtype] * (inputs.count(";") + 1)),
        "Output Shapes": f'"{output}"', "Output Data Types": dtype,
    }  # fmt: skip


def read(text: str) -> KernelTimes:
    found = profiles.read(text, "kernel_details.csv")
    assert found is not None
    assert found.times is not None
    return found.times


def test_both_tables_say_the_same() -> None:
    rows = (
        row("MatMulV3", 185.5, "4096,512;512,1024", "4096,1024", "AI_CORE"),
        row("Add", 5, "64,128;128", "64,128", dtype="FLOAT"),
    )
    (mm, add), other = read(table(*rows)).rows, read(table(*rows, heads=OP_SUMMARY)).rows
    assert (mm, add) == other
    assert (mm.type, mm.operator, mm.core, mm.us) == ("MatMulV3", "mm", "AI_CORE", 185.5)
    assert (mm.inputs, mm.outputs, mm.input_bytes) == (((4096, 512), (512, 1024)), ((4096, 1024),), (2, 2))
    assert (add.operator, add.inputs, add.output_bytes, add.line) == ("add", ((64, 128), (128,)), (4,), 3)


def test_what_is_left_out_is_counted_with_its_reason() -> None:
    whole = row("Add", 5, "64,128;128", "64,128")
    found = read(
        table(
            whole,
            {**whole, "Accelerator Core": "HCCL"},
            {**whole, "Accelerator Core": "AI_CPU"},
            {**whole, "Input Shapes": "N/A"},
            {**whole, "Input Shapes": ",".join(["9" * 15] * 32)},
            {**whole, "Duration(us)": "0"},
            {**whole, "Duration(us)": "nan"},
            {**whole, "Type": "N/A", "Name": "N/A"},
        )
    )
    assert len(found.rows) == 1
    assert found.left_out == {
        "HCCL: not on the AI cores": 1, "AI_CPU: not on the AI cores": 1, "no shapes": 2, "no time of a kernel": 2,
        "no operator type": 1,
    }  # fmt: skip


def test_a_type_is_found_in_a_kernels_name_and_a_type_that_is_not_known_keeps_its_own() -> None:
    assert operator_type("aclnnMatmul_MatMulV3Common_MatMulV3") == "MatMulV3"
    assert operator_type("MatMulV3_5f2e_mix_aic") == "MatMulV3"
    assert operator_type("hash_of_nothing") is None
    assert [torch_operator(one) for one in ("ReduceSumD", "AddAiCore", "ApplyAdamW")] == ["sum", "add", None]
    (found,) = read(table(row("ApplyAdamW", 9, "64;64", "64"))).rows
    assert (found.type, found.operator) == ("ApplyAdamW", None)


@pytest.mark.parametrize(
    ("left", "right", "made", "flops"),
    [
        ((8, 16), (16, 4), (8, 4), 2 * 8 * 16 * 4),
        ((16, 8), (4, 16), (8, 4), 2 * 8 * 16 * 4),  # both transposed
        ((3, 8, 16), (3, 16, 4), (3, 8, 4), 3 * 2 * 8 * 16 * 4),
        ((3, 8, 16), (16, 4), (3, 8, 4), 3 * 2 * 8 * 16 * 4),
        ((0, 8, 16), (0, 16, 4), (0, 8, 4), 0),  # no token came to an expert
        ((8, 0), (0, 4), (8, 4), 0),
    ],
)
def test_operations_of_a_product_do_not_depend_on_how_it_lies(
    left: tuple[int, ...], right: tuple[int, ...], made: tuple[int, ...], flops: int
) -> None:
    assert product_flops(left, right, made) == pytest.approx(flops)


def kernel(type: str, operator: str | None, elements: int, us: float, line: int = 1) -> KernelTime:
    shape = ((elements,),)
    return KernelTime(line=line, type=type, operator=operator, core="AI_VECTOR_CORE", inputs=shape, outputs=shape,
                      input_bytes=(2,), output_bytes=(2,), us=us)  # fmt: skip


def made(*rows: KernelTime) -> ProfileTable:
    return made_of(sized(rows, RATIO), soc="Ascend910B1", cann="8.5.0", files=("p.csv",), ratio=RATIO)


def test_a_table_has_quantiles_by_operator_and_size_with_their_rows() -> None:
    found = made(*(kernel("Abs", "abs", 1000, us) for us in (9, 10, 11)), kernel("Abs", "abs", 4000, 40))
    small, large = found.families["pointwise"]["abs"]
    assert (small.size, small.low_us, small.middle_us, small.high_us, small.rows) == (4000, 9, 10, 11, 3)
    assert (large.size, large.middle_us, large.rows) == (16000, 40, 1)
    assert found.words == "4 rows of p.csv, Ascend910B1, CANN 8.5.0"
    assert answer(found.as_text(), indent=1)["rows"] == 4


def test_an_estimate_names_the_entries_and_rows_that_it_is_made_of() -> None:
    rows = [kernel("Abs", "abs", 1000, us) for us in (9, 10, 10, 10, 11)]
    found = made(*rows, kernel("Abs", "abs", 4000, 40), kernel("Neg", "neg", 1000, 12))
    own = found.estimate("pointwise", "abs", 4000)
    between = found.estimate("pointwise", "abs", 10_000)
    other = found.estimate("pointwise", "sub", 4000)
    assert own is not None
    assert between is not None
    assert other is not None
    assert (own.low_us, own.middle_us, own.high_us, own.rows, own.samples) == (9, 10, 11, 5, (("abs", 4000),))
    assert (between.middle_us, between.rows) == (pytest.approx(25), 6)
    assert between.low_us <= between.middle_us <= between.high_us
    assert (other.rows, len(other.samples)) == (7, 3)
    assert found.estimate("attention", "sub", 4000) is None


def test_beyond_the_sizes_of_an_operator_its_family_says_the_slope() -> None:
    found = ProfileTable(
        soc="a", cann="b", files=("f",), rows=2, flops_per_byte=RATIO,
        families={"pointwise": {"abs": (SizeTimes(size=1e3, low_us=2, middle_us=2, high_us=2, rows=9),)}},
        lines={"pointwise": Line(start_us=1.5, us_per_byte=1e-3)}, new_sizes={},
        repeats=Interval(low=1, high=1, rows=0),
    )  # fmt: skip

    def at(size: float) -> float:
        estimate = found.estimate("pointwise", "abs", size)
        assert estimate is not None
        return estimate.middle_us

    assert [at(size) for size in (1, 1e3, 2e3)] == pytest.approx([1.5, 2, 3])


def test_the_line_of_a_family_starts_at_its_short_kernels() -> None:
    found = made(*(kernel("Abs", "abs", elements, 5 + elements / 1000) for elements in (1, 2, 4, 1000, 4000, 10_000)))
    line = found.lines["pointwise"]
    assert line.start_us == pytest.approx(5, rel=0.01)
    assert line.us_per_byte == pytest.approx(1 / 4000, rel=0.01)  # 2 bytes are read and 2 written


@pytest.mark.parametrize(("there", "taken"), [(1, 1), (199, 199), (399, 399), (400, 200), (599, 300), (600, 200)])
def test_of_many_slopes_evenly_many_are_tried(there: int, taken: int) -> None:
    slopes = [float(slope) for slope in range(there)]
    found = some_slopes(slopes)
    assert len(found) == taken
    assert found == slopes[:: there // taken if there % taken == 0 else 2]


def test_a_product_of_one_operand_is_as_large_as_what_it_moves() -> None:
    one = attrs.evolve(kernel("MatMulV3", "mm", 1000, 5), inputs=((1000,),))
    (found,) = sized([one], RATIO)
    assert (found.feature.family, found.feature.size) == ("product", 4000)


def test_how_rows_of_one_size_spread_is_kept_and_a_size_of_one_row_says_nothing_of_it() -> None:
    found = made(*(kernel("Abs", "abs", 1000, us) for us in (9, 10, 12)), kernel("Neg", "neg", 4000, 40))
    assert found.repeats == Interval(low=pytest.approx(0.9), high=pytest.approx(1.2), rows=3)


def test_a_product_is_as_large_as_its_operations_where_they_take_longer_than_its_bytes() -> None:
    square = attrs.evolve(
        kernel("MatMulV3", "mm", 1, 5), inputs=((64, 8), (8, 64)), input_bytes=(2, 2), outputs=((64, 64),)
    )
    (by_operations,), (by_bytes,) = sized([square], 0.5), sized([square], RATIO)
    assert by_operations.feature.size == 2 * 64 * 8 * 64 / 0.5
    with_bias = attrs.evolve(square, inputs=(*square.inputs, (64,)), input_bytes=(2, 2, 2))
    assert sized([with_bias], 0.5)[0].feature.size == by_operations.feature.size
    assert by_bytes.feature.size == 2 * (64 * 8 + 8 * 64 + 64 * 64)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(0.5, 1e5)), min_size=1, max_size=30), st.floats(1, 1e9))
def test_every_table_reads_back_and_holds_its_own_conditions(rows: list[tuple[int, float]], size: float) -> None:
    found = made(*(kernel("Abs", "abs", elements, us) for elements, us in rows))
    assert ProfileTable.from_text(found.as_text(), "t.json") == found
    estimate = found.estimate("pointwise", "abs", size)
    assert estimate is not None
    assert 0 < estimate.low_us <= estimate.middle_us <= estimate.high_us < math.inf


def test_quantiles_and_what_an_unseen_value_does_to_their_bounds() -> None:
    assert quantile((1.0, 3.0), 0.5) == 2
    values = [float(value) for value in range(1, 101)]
    assert bound(values, 0.1) < quantile(values, 0.1)
    assert bound(values, 0.9) > quantile(values, 0.9)
    assert (bound((1.0, 2.0), 0.1), bound((5.0,), 0.9)) == (1, 5)


def made_up(seed: int, noise: float) -> list[KernelTime]:
    """Kernels of a device whose time is a launch and the bytes, with noise."""
    source = random.Random(seed)
    names = (("Abs", "abs"), ("Add", "add"), ("Cast", "_to_copy"))
    sizes = (2**12, 2**16, 2**18, 2**20, 2**22)
    return [
        kernel(*source.choice(names), elements, (2 + 4 * elements / 1e6) * math.exp(source.gauss(0, noise)), line)
        for line, elements in enumerate(source.choices(sizes, k=400), 2)
    ]


def test_held_out_rows_of_a_regular_device_are_predicted_within_its_noise() -> None:
    single, whole = held_out(sized(made_up(1, 0.05), RATIO), RATIO)
    for one, least in ((single, 0.7), (whole, 0.5)):
        assert one.rows == len(one.predicted) == 400
        assert one.median_error is not None
        assert one.coverage is not None
        assert one.median_error < 0.1
        assert least < one.coverage <= 1


def test_times_that_follow_nothing_are_not_predicted() -> None:
    rows = [
        kernel("Abs", "abs", 2 ** (line % 9 + 8), us, line)
        for line, us in enumerate(random.Random(2).choices((1, 1e4), k=200))
    ]
    single, whole = held_out(sized(rows, RATIO), RATIO)
    assert max(one.p90_error or 0 for one in (single, whole)) > 0.9


def test_so_few_rows_are_too_few_to_hold_some_out(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count, status in ((19, 2), (20, 0)):
        profile.write_text(table(*[row("Abs", 5, "64", "64")] * count))
        assert main(["profile", "check", str(profile), "--soc", "a2"]) == status
    assert "19 kernels on the AI cores are too few to hold some out; 20 are needed." in capsys.readouterr().err


def test_nothing_predicted_has_no_error() -> None:
    from npucompose_devtools.profiles.command import _row

    assert _row("product", HeldOut(what="x", rows=3, predicted=())) == "product               0"
    empty = HeldOut(what="x", rows=3, predicted=())
    assert (empty.median_error, empty.p90_error, empty.coverage, empty.total_error) == (None, None, None, None)


def test_a_device_does_so_many_operations_while_it_moves_a_byte() -> None:
    assert flops_per_byte(ATLAS_A2) == pytest.approx(24 * 13_000 / ATLAS_A2.gbytes_s)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    rows = [row(one.type, one.us, str(one.inputs[0][0]), str(one.outputs[0][0])) for one in made_up(3, 0.1)]
    (tmp_path / "kernel_details.csv").write_text(table(*rows))
    return tmp_path / "kernel_details.csv"


def test_a_profile_becomes_a_table_and_a_check(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = profile.with_name("times.json")
    assert main(["profile", "import", str(profile), "--soc", "ascend910b1", "--cann", "8.5.0", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "400 rows of kernel_details.csv, Ascend910B1, CANN 8.5.0" in printed
    assert f"streams.profile={out}" in printed
    found = ProfileTable.from_file(out)
    assert (found.soc, found.cann, found.rows, set(found.families)) == (
        "Ascend910B1",
        "8.5.0",
        400,
        {"pointwise", "copy"},
    )
    assert main(["profile", "check", str(profile), "--soc", "a2"]) == 0
    page = capsys.readouterr().out
    assert "single rows: 400 of 400 rows predicted" in page
    assert "80% should lie in the interval" in page
    assert main(["profile", "check", str(profile), "--soc", "a2", "--json"]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(printed)
    assert printed == f"{json.dumps(answer, indent=2)}\n"
    assert [one["held_out"] for one in answer["held_out"]] == ["single rows", "whole sizes"]
    assert answer["held_out"][0]["median_error"] < 0.2


def test_the_pages_of_both_commands(
    profile: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(profile.parent)
    product = row("MatMulV3", 185.5, "4096,512;512,1024", "4096,1024", "AI_CORE")
    other = row("Add", 5, "64,128;128", "64,128")
    more = table(product, product, other, *[{**other, "Accelerator Core": core} for core in ("HCCL", "HCCL", "AI_CPU")])
    profile.write_text(more + profile.read_text().split("\n", 1)[1])  # the last family by name comes first
    file = profile.name
    assert main(["profile", "import", file, "--soc", "ascend910b1", "--cann", "8.5.0", "--out", "times.json"]) == 0
    assert main(["profile", "check", file, "--soc", "ascend910b1"]) == 0
    golden("device_files/profile.txt", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "FILE", "--soc", "nonsense", "--cann", "8.5.0"], "nonsense"),
        (["import", "FILE", "--soc", "a2", "--cann", "8 5"], "is no version of CANN"),
        (["check", "OTHER", "--soc", "a2"], "is no profile of kernels"),
        (["check", "SMALL", "--soc", "a2"], "are too few to hold some out"),
        (["check", "NONE", "--soc", "a2"], "no kernel on the AI cores"),
    ],
)
def test_what_cannot_be_imported_or_checked_is_refused(
    words: list[str], said: str, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "FILE": profile,
        "OTHER": profile.with_name("l.txt"),
        "SMALL": profile.with_name("s.csv"),
        "NONE": profile.with_name("n.csv"),
    }
    files["OTHER"].write_text("class G(torch.nn.Module):\n    a = torch.ops.aten.abs.default(b)\n")
    files["SMALL"].write_text(table(*[row("Abs", 5, "64", "64")] * 3))
    files["NONE"].write_text(table({**row("Abs", 5, "64", "64"), "Accelerator Core": "HCCL"}))
    assert main(["profile", *(str(files.get(word, word)) for word in words)]) == 2
    assert said in capsys.readouterr().err


def test_no_row_is_no_table() -> None:
    with pytest.raises(ConfigError, match="no kernel on the AI cores"):
        made()


def test_blanks_and_quotes_around_the_names_of_columns_are_none_of_them() -> None:
    one = row("Add", 5, "64,128;128", "64,128", dtype="FLOAT")
    first, rest = table(one).split("\n", 1)
    spaced = ",".join(f' "{name.strip()}" ' for name in first.split(","))
    assert read(f"\ufeff{spaced}\n{rest}") == read(table(one))


@pytest.mark.parametrize(
    ("size", "dtypes"),
    [
        (1, "INT8 UINT8 BOOL FLOAT8_E4M3FN FLOAT8_E5M2 HIFLOAT8"),
        (2, "FLOAT16 BF16 BFLOAT16 INT16 UINT16"),
        (4, "FLOAT FLOAT32 INT32 UINT32"),
        (8, "DOUBLE INT64 UINT64 COMPLEX64"),
        (16, "COMPLEX128"),
        (0, "NOVEL"),
    ],
)
def test_an_element_of_each_type_has_so_many_bytes(size: int, dtypes: str) -> None:
    for dtype in dtypes.split():
        (one,) = read(table(row("Add", 5, "64,128;128", "64,128", dtype=dtype))).rows
        assert (one.input_bytes, one.output_bytes) == ((size, size), (size,)), dtype


def test_operands_beyond_the_named_types_have_none() -> None:
    whole = {**row("Add", 5, "64;64;64", "64"), "Input Data Types": '"DT_BF16; float"', "Output Data Types": ""}
    (one,) = read(table(whole)).rows
    assert (one.input_bytes, one.output_bytes) == ((2, 4, 0), (0,))


def test_a_row_of_blanks_commas_and_numbers_is_read_field_by_field() -> None:
    """A blank operand is a number, blanks and quotes are none of a field; a row without a field is none."""
    whole = {**row("Add", 5, " 64,128 ;; 128", " 64,128 "), "Accelerator Core": '" AI_CORE "'}
    found = read(f"{table(whole)}\n")
    (one,) = found.rows
    assert (one.core, one.us, one.inputs, one.outputs) == ("AI_CORE", 5.0, ((64, 128), (), (128,)), ((64, 128),))
    assert found.left_out == {}


def test_one_side_without_shapes_is_enough_of_a_kernel_and_two_are_not() -> None:
    whole = row("Add", 5, "64", "64")
    found = read(table({**whole, "Input Shapes": ""}, {**whole, "Output Shapes": '""'},
                       {**whole, "Input Shapes": "", "Output Shapes": ""}))  # fmt: skip
    assert [(one.inputs, one.outputs) for one in found.rows] == [((), ((64,),)), (((64,),), ())]
    assert found.left_out == {"no shapes": 1}


def test_an_operand_has_at_most_so_many_elements_and_a_time_so_many_microseconds() -> None:
    most = f"{2**24},{2**24}"
    whole = row("Add", 5, most, most)
    found = read(table(whole, {**whole, "Output Shapes": f"{most},2"}, {**whole, "Duration(us)": "1e12"},
                       {**whole, "Duration(us)": "9e11"}, {**whole, "Duration(us)": "soon"},
                       {**whole, "Accelerator Core": ""}, {**whole, "Accelerator Core": "X" * 50}))  # fmt: skip
    assert [one.us for one in found.rows] == [5, 9e11]
    assert found.left_out == {
        "no shapes": 1, "no time of a kernel": 1, "no number as its time": 1, "no core: not on the AI cores": 1,
        f"{'X' * 40}: not on the AI cores": 1,
    }  # fmt: skip


def test_a_table_that_is_cut_off_or_lacks_columns_is_refused() -> None:
    whole = table(row("Add", 5, "64", "64"))
    with pytest.raises(ConfigError, match=r"k\.csv:3 has 2 fields, and its head names more: it is cut off\.$"):
        profiles.read(f"{whole}1,2\n", "k.csv")
    heads = tuple(name if "Shapes" not in name else "X" for name in KERNEL_DETAILS)
    with pytest.raises(ConfigError, match=r"^k\.csv lacks the columns Input Shapes, Output Shapes: profile with"):
        profiles.read(table(heads=heads), "k.csv")
    with pytest.raises(ConfigError, match=r"^k\.csv:3 is no row of a table: field larger"):
        profiles.read(f"{whole}{'9' * 100_001}", "k.csv")
    assert profiles.read("Name,Type,Accelerator Core\n", "k.csv") is None


def test_a_field_has_at_most_so_many_characters() -> None:
    longest = row("Add", 5, "64", "64") | {"Name": "n" * 100_000}
    assert len(read(table(longest)).rows) == 1


def test_elements_of_an_unknown_type_count_as_half_precision() -> None:
    (one,) = sized(read(table(row("Add", 5, "64,128;128", "64,128", dtype="NOVEL"))).rows, 1.0)
    (two,) = sized(read(table(row("Add", 5, "64,128;128", "64,128", dtype="FLOAT16"))).rows, 1.0)
    (four,) = sized(read(table(row("Add", 5, "64,128;128", "64,128", dtype="FLOAT"))).rows, 1.0)
    assert one.feature == two.feature != four.feature
