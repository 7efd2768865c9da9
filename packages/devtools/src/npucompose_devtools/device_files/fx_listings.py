"""FX graphs as torch prints them (`GraphModule.print_readable`): TorchAir leaves one after each of its passes, with
TORCH_COMPILE_DEBUG=1, and its data dump names their nodes. Each node with its line of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npucompose.results.artefacts import FileFacts, FxListing, ListedNode

FORM = "an FX graph that torch printed, as TorchAir leaves one after each pass (TORCH_COMPILE_DEBUG=1)"
LONGEST_LINE = 8_000
_CLASS = re.compile(r"^[^\S\n]*class \S{1,200}\(torch\.nn\.Module\):", re.MULTILINE)
_FILE = re.compile(
    r"^\s*# File: (?P<file>[^\n]{1,4096}?):(?P<line>\d{1,9}) in (?P<function>[^\n,]{1,200}),? code: (?P<code>.*)$"
)
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
"""torch's short names of dtypes."""
_NODE = re.compile(
    r"^\s*(?P<name>[A-Za-z_]\w{0,200})"
    r"(?:\s?:\s?(?:[\"'](?P<dtype>[a-z]{1,3}\d{0,3})[^\"']*[\"']|[\w.\[\], ]{1,200}))? = "
    r"(?:torch\.ops\.)?(?P<operator>[A-Za-z_][\w.]{0,200})\("
)


def read(text: str, name: str) -> FileFacts | None:
    """The nodes; None for a text that is no such listing."""
    if not _CLASS.search(text[:20_000]):
        return None
    return FileFacts(listings=(FxListing(name=name, nodes=tuple(_nodes(text))),))


def _nodes(text: str) -> Iterator[ListedNode]:
    """A line `# File: …` is of all nodes below it, up to the next blank line."""
    source: str | None = None
    for line in text.splitlines():
        if not line.strip() or line.strip().startswith("# No stacktrace"):
            source = None
        elif found := _FILE.match(line[:LONGEST_LINE]):
            file = found["file"].rpartition("/")[2]
            source = f"{file}:{found['line']} in {found['function'].strip()}: {found['code'].strip()}"
        elif found := _NODE.match(line[:LONGEST_LINE]):
            dtype = _DTYPES.get(found["dtype"] or "")
            yield ListedNode(name=found["name"], operator=found["operator"], dtype=dtype, source=source)
