"""Read the error codes of a checkout of hicann/runtime into src/npucompose/npu/capture/error_codes.json.

    python -m tools.read_error_codes RUNTIME           # a clone, or a repository without a work tree; its HEAD is read

The public headers say which codes there are, the runtime's own table what it prints of each. Only numbers, names and
the sentences that the runtime prints are taken.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npucompose.npu.capture.codes import DATA
from tools.repositories import git

HEADERS = (
    "include/external/acl/acl_base_rt.h",
    "include/external/acl/error_codes/rt_error_codes.h",
    "include/external/acl/error_codes/ge_error_codes.h",
)
TABLE = "src/runtime/core/src/common/errcode_manage.cc"
_DEFINED = re.compile(
    r"(?:#define|static const (?:int|uint32_t))\s+(?P<name>ACL_ERROR_\w+)\s*(?:=|\\\n)?\s*(?P<code>\d{5,6})U?\b"
)
_PRINTED = re.compile(r"rtErrMap_\[\w+\] = \{\s*(?P<name>ACL_ERROR_\w+),\s*(?P<said>(?:\"[^\"]*\"\s*)+)\}", re.S)


def codes_of(headers: dict[str, str], table: str) -> dict[str, Any]:
    """{code: its name, where it is defined, what the runtime prints}, ascending."""
    printed: dict[str, list[str]] = {}
    for found in _PRINTED.finditer(table):
        said = "".join(re.findall(r'"([^"]*)"', found["said"])).strip().rstrip(".")
        printed.setdefault(found["name"], []).append(said)
    rows = {int(row["code"]): row for name, text in headers.items() for row in _defined(name, text)}
    for row in rows.values():
        row["says"] = list(dict.fromkeys(printed.get(row["name"], ())))
    return {str(code): {key: rows[code][key] for key in ("name", "at", "says")} for code in sorted(rows)}


def _defined(name: str, text: str) -> Iterator[dict[str, Any]]:
    for found in _DEFINED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield {"code": found["code"], "name": found["name"], "at": f"{name}:{line}"}


def read(repository: Path) -> dict[str, Any]:
    """The data file, of the repository's HEAD."""
    commit, date = git(repository, "log", "-1", "--format=%H %cs").split()
    headers = {name: git(repository, "show", f"HEAD:{name}") for name in HEADERS}
    codes = codes_of(headers, git(repository, "show", f"HEAD:{TABLE}"))
    return {"source": "hicann/runtime", "commit": commit, "date": date, "table": TABLE, "codes": codes}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; say how many codes it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    data = read(parser.parse_args(arguments).repository)
    rows = [f"    {json.dumps(code)}: {json.dumps(row, ensure_ascii=False)}" for code, row in data.pop("codes").items()]
    head = json.dumps(data, indent=2)[:-2]
    listed = ",\n".join(rows)
    DATA.write_text(f'{head},\n  "codes": {{\n{listed}\n  }}\n}}\n', encoding="utf-8")
    print(f"{len(rows)} codes of {data['source']} {data['commit'][:12]} in {DATA.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
