"""msprobe's dump of one step: `dump.json` (operators with statistics), `stack.json` (their lines), tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from npucompose.errors import ConfigError
from npucompose.input_safety import read_text
from npucompose.results.artefacts import DumpedOperator, DumpedValue
from npucompose_devtools.device_files.tensor_dumps import Folder
from npucompose_devtools.device_files.tracebacks import is_theirs

FORM = "a folder of msprobe's dump (dump.json, with or without tensors)"
MOST_OPERATORS = 200_000
DUMP, STACK, TENSORS = "dump.json", "stack.json", "dump_tensor_data"
_FRAME = re.compile(
    r"\s*File (?P<file>.{1,4096}?), line (?P<line>\d{1,9}), in (?P<function>[^,\n]{1,200}),?\s*\n\s*(?P<code>[^\n]*)"
)
_FILE = re.compile(r"[\w.\-]{1,400}\.(?:pt|npy)")
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "mindspore.Tensor", "numpy.ndarray")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
DEEPEST = 8
MOST_BYTES = 64 * 2**20


def read(folder: Path) -> Folder | None:
    """None for a folder without dump.json; ConfigError for one that is no dump of msprobe's."""
    if not (folder / DUMP).is_file():
        return None
    data = _json(folder / DUMP).get("data")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{folder / DUMP} has no 'data': it is no dump of msprobe.")
    if len(cast("Mapping[str, Any]", data)) > MOST_OPERATORS:
        raise ConfigError(f"{folder / DUMP} has more than {MOST_OPERATORS:,} operators: dump one step.")
    lines = _lines(folder / STACK)
    operators = tuple(_operators(cast("Mapping[str, Any]", data), lines))
    if not operators:
        raise ConfigError(f"{folder / DUMP} has no operator with a tensor: dump with level L0, L1 or mix.")
    return Folder(name=folder.name, operators=operators, path=folder / TENSORS)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(read_text(path, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no whole JSON ({type(error).__name__}).") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no names: it is no file of msprobe.")
    return cast("Mapping[str, Any]", found)


def _operators(data: Mapping[str, Any], lines: Mapping[str, str]) -> Iterator[DumpedOperator]:
    for name, call in data.items():
        if not isinstance(call, Mapping):
            continue
        of_call = cast("Mapping[str, Any]", call)
        inputs = (
            *_values(of_call.get("input_args")),
            *_values(of_call.get("input")),
            *_values(of_call.get("input_kwargs")),
        )
        outputs = tuple(_values(of_call.get("output")))
        if inputs or outputs:
            yield DumpedOperator(
                name=name, operator=_operator(name), inputs=inputs, outputs=outputs, source=lines.get(name)
            )


def _operator(name: str) -> str:
    """`Functional.linear.5.forward` is of "linear", `Module.layers.0.mlp.Linear.forward.0` of "Linear"."""
    parts = name.split(".")
    kinds = [at for at, part in enumerate(parts) if part in ("forward", "backward")]
    if parts[0] in ("Module", "Cell") and kinds:
        return parts[kinds[-1] - 1]
    return parts[1] if len(parts) > 1 else name


def _values(held: Any, slot: str = "", depth: int = 0) -> Iterator[DumpedValue]:
    """The tensors in what msprobe wrote of arguments or results: lists of lists, or by keyword."""
    if depth > DEEPEST:
        return
    if isinstance(held, Mapping) and "type" in held and not isinstance(held["type"], Mapping):
        if held["type"] in _TENSORS:
            yield _value(cast("Mapping[str, Any]", held), slot or "0")
        return
    if isinstance(held, Mapping):
        inside = cast("Mapping[str, Any]", held).items()
    else:
        inside = enumerate(cast("list[Any]", held)) if isinstance(held, list) else ()
    for key, one in inside:
        yield from _values(one, f"{slot}.{key}" if slot else str(key), depth + 1)


def _value(held: Mapping[str, Any], slot: str) -> DumpedValue:
    name, shape = held.get("data_name"), held.get("shape")
    numbers = {key: number for key in _STATISTICS if (number := _number(held.get(key))) is not None}
    whole = isinstance(shape, list) and all(isinstance(size, int) for size in cast("list[Any]", shape))
    return DumpedValue(
        slot=slot,
        file=name if isinstance(name, str) and _FILE.fullmatch(name) else None,  # it may lie nowhere else
        dtype=str(held.get("dtype", "")).rpartition(".")[2].lower() or None,
        shape=tuple(cast("list[int]", shape)) if whole else None,
        statistics=numbers,
    )


def _number(held: Any) -> float | None:
    """None for what is no number, or is none that a tensor holds."""
    try:
        return float(held) if isinstance(held, (int, float)) else None
    except OverflowError:
        return None


def _lines(path: Path) -> Mapping[str, str]:
    """{operator: its line of the model}. A stack is a list of frames by an operator's name, or by number with names."""
    if not path.is_file():
        return {}
    found: dict[str, str] = {}
    for name, stack in _json(path).items():
        names, frames = [name], stack
        if isinstance(stack, list) and len(stack) == 2 and all(isinstance(part, list) for part in stack):
            names, frames = cast("tuple[list[Any], Any]", tuple(cast("list[Any]", stack)))
        line = _line(frames)
        if line is not None:
            found.update({str(one): line for one in names})
    return found


def _line(frames: Any) -> str | None:
    """The innermost frame, which is the first, that is a model's."""
    for frame in cast("list[Any]", frames) if isinstance(frames, list) else ():
        found = _FRAME.match(frame) if isinstance(frame, str) else None
        if found is not None and is_theirs(found["file"]) and "/msprobe/" not in found["file"]:
            return _words(found)
    return None


def _words(frame: re.Match[str]) -> str:
    file = frame["file"].rpartition("/")[2]
    return f"{file}:{frame['line']} in {frame['function'].strip()}: {frame['code'].strip()}"
