"""What TorchAir says when it cannot compile a graph, as one paragraph."""

from __future__ import annotations

import re

from npucompose.errors import traced_line

_OVERLAP = "refer to a single memory location"
_IN_PLACE = {
    "npugraph_ex": "compiler.npugraph_ex.inplace_pass=false",
    "reduce-overhead": "compiler.debug.aclgraph.disable_reinplace_inplaceable_ops_pass=true",
}
_NO_CONVERTER = ("ge_converter is not implemented", "ge_converter is not supported", "no registered converter")


def sentence(error: BaseException, mode: str) -> str | None:
    """The paragraph for a failure that is understood; None leaves the error as it is."""
    text = str(error)
    if _OVERLAP in text and mode in _IN_PLACE:
        # torch.fx.passes.reinplace, which TorchAir's pass follows, looks at later uses of the memory only.
        return (
            "TorchAir's in-place pass lets an operator write its result over an argument whose memory another argument "
            f"of it reads too (x[1:] - x[:-1], for example); the operator refuses that, on a device as here. Leave the "
            f"pass out: {_IN_PLACE[mode]}. It says: {text.strip().splitlines()[0]}"
        )
    node = re.search(r"While executing %(\S+) : .*?\[target=([\w.]+)\]", text)
    converter = any(words in text for words in _NO_CONVERTER) or "converter" in text
    if node is None or not converter:
        return None
    traceback = re.split(r"\n\n|Traceback \(most recent", text.partition("Original traceback:")[2])[0]
    where = traced_line(traceback)
    line = f" at {where}" if where else ""
    first = text.strip().splitlines()[0]
    return f"TorchAir has no GE converter for {node.group(2)} (node {node.group(1)}){line}. It says: {first}"
