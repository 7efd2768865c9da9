"""The schemas of a torch_npu's operators, and its numbers of types.

Read from the files of an unpacked wheel; npucompose brings the list of one version besides (`npu_schemas.txt`, which
`tools/read_schemas.py` writes). What a wheel has of each operator is in `vendor.wheel_operators`. Loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from npucompose.errors import ConfigError

LISTED = Path("csrc") / "aten" / "npu_native_functions_by_codegen.yaml"
SECTIONS = ("custom", "symint", "autograd", "quant")
"""Of the list: those whose operators libtorch_npu.so registers, in the order in which the first of a name counts."""
META = Path("op_plugin") / "meta"
META_FILES = ("_meta_registrations", "_fake_registrations")
"""Modules of META; the second came with sizes that are symbols."""
SHIPPED = Path(__file__).with_name("npu_schemas.txt")
_EFFECT = re.compile(r"^has_side_effect\(torch\.ops\.npu\.(\w+)\.default\)", re.MULTILINE)
_SHIPPED_LINE = re.compile(r"^([ !]) (.+)$", re.MULTILINE)
NUMBERS = Path("include") / "acl" / "acl_base_rt.h", Path("include") / "acl" / "acl_base.h"
"""Headers that may hold the numbers of CANN's types, `ACL_HIFLOAT8 = 34`."""
OFFSET = Path("include") / "torch_npu" / "csrc" / "custom_dtype" / "Init.h"
_NUMBER = re.compile(r"^ *ACL_(\w+) = (\d+),$", re.MULTILINE)
_NAMED = re.compile(r"^ +(\d+): \"torch_npu\.(\w+)\",$", re.MULTILINE)
_OFFSET = re.compile(r"g_toAclOffset = (\d+);")
_TYPES = re.compile(r"ACL_DT_UNDEFINED = -1,\n(.*?)\}", re.DOTALL)
TORCHS = {"float": "float32", "double": "float64", "bf16": "bfloat16"}
"""{CANN's name of a type in small letters: torch's}, where they differ."""


@frozen(kw_only=True)
class Catalogue:
    """`Catalogue(version="2.13.0", schemas={"npu_rms_norm": "npu_rms_norm(Tensor self, …"})`.

    The names are those of overloads, `npu_max.dim`; a default overload is called as its operator.
    """

    version: str
    schemas: Mapping[str, str]
    effects: frozenset[str] = frozenset()
    """Those that the wheel keeps in a graph whether their results are used or not."""


def of_wheel(root: Path, version: str) -> Catalogue:
    """The operators of the wheel whose folder torch_npu is `root`; ConfigError where it has no such list."""
    file = root / LISTED
    try:
        found = {_name(one): one for one in schemas(file.read_text(encoding="utf-8"))}
        what = "" if found else f"no operator in {LISTED}"
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        found, what = {}, f"no {LISTED} that can be read"
    if what:
        raise ConfigError(f"torch_npu {version} in {root} has {what}: which operators it has is not known.")
    text = "".join(one.read_text(encoding="utf-8") for one in meta_files(root))
    return Catalogue(version=version, schemas=found, effects=frozenset(_EFFECT.findall(text)))


@cache
def shipped() -> Catalogue:
    """The operators of the version that npucompose brings the list of."""
    text = SHIPPED.read_text(encoding="utf-8")
    lines = {_name(schema): (mark, schema) for mark, schema in _SHIPPED_LINE.findall(text)}
    return Catalogue(
        version=text.split(maxsplit=3)[2].rstrip(":"),
        schemas={name: schema for name, (_, schema) in lines.items()},
        effects=frozenset(name for name, (mark, _) in lines.items() if mark == "!"),
    )


def schemas(text: str) -> Iterator[str]:
    """The schemas of a wheel's list in the order of its sections, each name once, as libtorch_npu.so registers them."""
    listed: Any = yaml.safe_load(text)
    seen: set[str] = set()
    for section in SECTIONS if isinstance(listed, dict) else ():
        entries = listed.get(section)
        for entry in entries if isinstance(entries, list) else ():
            schema = str(entry.get("func", "") if isinstance(entry, dict) else entry)
            if "->" in schema and (name := _name(schema)) not in seen:
                seen.add(name)
                yield as_registered(schema)


def as_registered(schema: str) -> str:
    """Several outputs of an `.out` operator are one list: `f.out(…, Tensor(a!) x, Tensor(b!) y)` -> `Tensor[] out`."""
    head, _, result = schema.rpartition("->")
    outputs = re.findall(r"Tensor\([a-z]!\) \w+", head)
    if ".out" in _name(schema) and len(outputs) >= 2:
        head = head[: head.index(outputs[0])] + "Tensor[] out) "
        result = re.sub(r"\([a-z]!\)", "", result)
    return f"{head}->{result}"


def meta_files(root: Path) -> list[Path]:
    """The wheel's files of meta functions, those that it has."""
    return [file for name in META_FILES if (file := root / META / f"{name}.py").is_file()]


def dtype_numbers(root: Path) -> dict[str, int]:
    """`{"float4_e2m1fn_x2": 296, …}`: torch_npu's numbers of types, read from the wheel's meta functions and headers.

    A number is CANN's and an offset; the meta functions name those that torch has no type for.
    """
    offset = _OFFSET.search(_text(root / OFFSET))
    types = next((found[1] for file in NUMBERS if (found := _TYPES.search(_text(root / file)))), "")
    numbers: dict[str, int] = {}
    if offset is not None:
        for name, number in _NUMBER.findall(types):
            own = name.lower()
            numbers[TORCHS.get(own) or own] = int(number) + int(offset[1])
    named = {name: int(number) for file in meta_files(root) for number, name in _NAMED.findall(_text(file))}
    return {name: number for name, number in numbers.items() if number not in named.values()} | named


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _name(schema: str) -> str:
    return schema.partition("(")[0].strip()
