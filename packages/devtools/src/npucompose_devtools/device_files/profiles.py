"""A profile's kernels, one a row: torch_npu's `kernel_details.csv` and msprof's `op_summary_*.csv`.

The two say the same under other names (`Name` and `Op Name`, `Duration(us)` and `Task Duration(us)`, `Accelerator Core`
and `Task Type`); which further columns there are depends on the metrics that were asked for. Shapes are text in quotes,
`"4096,512;512"`, an operand's sizes between semicolons.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from npucompose.errors import ConfigError
from npucompose.results.artefacts import FileFacts, KernelTime, KernelTimes
from npucompose_devtools.device_files.kernels import operator_type, torch_operator

FORM = "a profile's kernel_details.csv (torch_npu.profiler) or op_summary_*.csv (msprof)"
MOST_ROWS = 2_000_000
LONGEST_FIELD = 100_000
_NAMES: Mapping[str, tuple[str, ...]] = {
    "name": ("Name", "Op Name"),
    "type": ("Type", "OP Type", "Op Type"),
    "core": ("Accelerator Core", "Task Type"),
    "us": ("Duration(us)", "Task Duration(us)"),
    "inputs": ("Input Shapes",),
    "input_types": ("Input Data Types",),
    "outputs": ("Output Shapes",),
    "output_types": ("Output Data Types",),
}
_WANTED = ("name", "type", "core", "us")
_BYTES: Mapping[str, int] = {
    "DOUBLE": 8, "FLOAT": 4, "FLOAT32": 4, "FLOAT16": 2, "BF16": 2, "BFLOAT16": 2, "INT64": 8, "UINT64": 8, "INT32": 4,
    "UINT32": 4, "INT16": 2, "UINT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "COMPLEX64": 8, "COMPLEX128": 16,
    "FLOAT8_E4M3FN": 1, "FLOAT8_E5M2": 1, "HIFLOAT8": 1,
}  # fmt: skip
_CORES = re.compile(r"^(?:AI_CORE|AI_VECTOR_CORE|AI_CUBE_CORE|MIX_AIC|MIX_AIV|AIV|AIC|VECTOR_CORE)$")
"""Kinds of tasks that run on the cores which plans are about."""
_SIZES = re.compile(r"\d{1,15}(?:,\d{1,15}){0,31}")
MOST_ELEMENTS = 2**48
"""Of an operand: no device holds more."""


def read(text: str, name: str) -> FileFacts | None:
    """The kernels; None for a text whose first line is no such table's. ConfigError for a table that cannot be used."""
    first = text.partition("\n")[0]
    heads = [head.strip().strip('"').lstrip("\ufeff") for head in first.split(",")]
    columns = {what: heads.index(one) for what, names in _NAMES.items() for one in names if one in heads}
    if not all(what in columns for what in _WANTED):
        return None
    if missing := [_NAMES[what][0] for what in ("inputs", "outputs") if what not in columns]:
        raise ConfigError(
            f"{name} lacks the columns {', '.join(missing)}: profile with record_shapes=True, and with "
            "profiler_level=Level1 or higher; msprof with --task-time=l1."
        )
    rows, left_out = _rows(text, name, columns)
    return FileFacts(times=KernelTimes(name=name, rows=tuple(rows), left_out=left_out))


def _rows(text: str, name: str, columns: Mapping[str, int]) -> tuple[list[KernelTime], Mapping[str, int]]:
    found: list[KernelTime] = []
    left_out: Counter[str] = Counter()
    for line, fields in _fields(text, name):
        if len(fields) <= max(columns.values()):
            raise ConfigError(f"{name}:{line} has {len(fields)} fields, and its head names more: it is cut off.")
        row = {what: fields[at].strip().strip('"').strip() for what, at in columns.items()}
        made = _row(line, row)
        if isinstance(made, str):
            left_out[made] += 1
        else:
            found.append(made)
        if len(found) > MOST_ROWS:
            raise ConfigError(f"{name} has more than {MOST_ROWS:,} kernels: profile fewer steps.")
    return found, left_out


def _fields(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(line, its fields) of each row below the head."""
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text))
    try:
        next(reader)
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ConfigError(f"{name}:{reader.line_num} is no row of a table: {error}.") from error


def _row(line: int, row: Mapping[str, str]) -> KernelTime | str:
    """The kernel, or why the row is left out."""
    if not _CORES.match(row["core"]):
        return f"{row['core'][:40] or 'no core'}: not on the AI cores"
    try:
        us = float(row["us"])
    except ValueError:
        return "no number as its time"
    if not 0 < us < 1e12:
        return "no time of a kernel"
    inputs, outputs = _shapes(row["inputs"]), _shapes(row["outputs"])
    if inputs is None or outputs is None or not (inputs or outputs):
        return "no shapes"
    kind = row["type"]
    known = kind if torch_operator(kind) else operator_type(row["name"]) or kind
    if known in ("", "N/A"):
        return "no operator type"
    return KernelTime(
        line=line,
        type=known,
        operator=torch_operator(known),
        core=row["core"],
        inputs=inputs,
        outputs=outputs,
        input_bytes=_widths(row.get("input_types", ""), len(inputs)),
        output_bytes=_widths(row.get("output_types", ""), len(outputs)),
        us=us,
    )


def _shapes(text: str) -> tuple[tuple[int, ...], ...] | None:
    """`4096,512;;512` as ((4096, 512), (), (512,)): an operand without sizes is a number. None for `N/A`, and for an
    operand of more than MOST_ELEMENTS."""
    found: list[tuple[int, ...]] = []
    for part in text.replace('"', "").split(";") if text.strip('" ') else ():
        if part.strip() and not _SIZES.fullmatch(part.strip()):
            return None
        found.append(tuple(int(size) for size in part.split(",")) if part.strip() else ())
        if math.prod(found[-1]) > MOST_ELEMENTS:
            return None
    return tuple(found)


def _widths(text: str, count: int) -> tuple[int, ...]:
    """`DT_BF16;FLOAT` as (2, 4); 0 for a type that is not known or not there."""
    names: Sequence[str] = [part.strip().strip('"').removeprefix("DT_").upper() for part in text.split(";")]
    return tuple(_BYTES.get(names[at], 0) if at < len(names) else 0 for at in range(count))
