"""What TorchAir says when it cannot compile a graph, as one paragraph."""

from __future__ import annotations

import re

from npucompose.errors import traced_line

_NO_CONVERTER = ("ge_converter is not implemented", "ge_converter is not supported", "no registered converter")


def sentence(error: BaseException) -> str | None:
    """The paragraph for a failure that is understood; None leaves the error as it is."""
    text = str(error)
    node = re.search(r"While executing %(\S+) : .*?\[target=([\w.]+)\]", text)
    converter = any(words in text for words in _NO_CONVERTER) or "converter" in text
    if node is None or not converter:
        return None
    traceback = re.split(r"\n\n|Traceback \(most recent", text.partition("Original traceback:")[2])[0]
    where = traced_line(traceback)
    line = f" at {where}" if where else ""
    first = text.strip().splitlines()[0]
    return f"TorchAir has no GE converter for {node.group(2)} (node {node.group(1)}){line}. It says: {first}"
