"""Which nodes an entry of an explicit plan means, and what to tell a person when it means none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from torch import fx

from npucompose.graphs.describe import op_name
from npucompose.schema.streams import Match, SourceMatch, fits

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_KEY = re.compile(r"(?:\.?_modules)?\[['\"]?([^'\"\]]+)['\"]?\]")
"""One step of a path: `['0']`, up to torch 2.9 `._modules['0']`."""


def targets(node: fx.Node) -> tuple[str, ...]:
    """An overload's name and its packet's: ("aten.mm.default", "aten.mm")."""
    name = op_name(node)
    packet = getattr(node.target, "overloadpacket", None)
    return (name,) if packet is None else (name, str(packet))


def modules(node: fx.Node) -> tuple[str, ...]:
    """The dotted paths of the modules a node was called in, outermost first: ("layers.0", "layers.0.mlp")."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = (_KEY.sub(r".\1", _ROOT.sub("", str(entry[0]))).lstrip(".") for entry in stack.values())
    return tuple(path for path in paths if path)


def frames(node: fx.Node) -> tuple[tuple[str, int], ...]:
    """(file, line) of the calls that made a node, outermost first."""
    found = _FRAME.finditer(node.meta.get("stack_trace") or "")
    return tuple((frame["file"], int(frame["line"])) for frame in found)


def _from(source: SourceMatch, node: fx.Node) -> bool:
    wanted = PurePath(source.file).parts
    first, last = source.lines or (1, 1 << 60)
    return any(PurePath(file).parts[-len(wanted) :] == wanted and first <= line <= last for file, line in frames(node))


def matches(match: Match, node: fx.Node) -> bool:
    if match.target is not None and not any(fits(match.target, name) for name in targets(node)):
        return False
    if match.name is not None and not fits(match.name, node.name):
        return False
    if match.module is not None and not any(fits(match.module, path) for path in modules(node)):
        return False
    return match.source is None or _from(match.source, node)


def find(match: Match, nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    return tuple(node for node in nodes if matches(match, node))


def why_none(match: Match, kernels: Sequence[fx.Node], others: Sequence[fx.Node]) -> str:
    """Why `match` finds no kernel: the field that fits nothing, with what is near it; else what was found instead."""
    if find(match, others):
        return "it finds only views, inputs or sizes, which start no kernel and stay with what they are made of"
    for field, given, present in (
        ("target", match.target, [name for node in kernels for name in targets(node)[:1]]),
        ("name", match.name, [node.name for node in kernels]),
        ("module", match.module, [path for node in kernels for path in modules(node)]),
    ):
        if given is not None and not find(_alone(field, given), kernels):
            return f"no {field} fits '{given}'. {_near(given, list(dict.fromkeys(present)))}"
    if match.source is not None and not find(Match(source=match.source), kernels):
        files = sorted({f"{PurePath(file).name}:{line}" for node in kernels for file, line in frames(node)[-1:]})
        return f"no source line fits. {_near(match.source.file, files)}"
    return "every field fits some node, but no node fits them all"


def _alone(field: str, given: str) -> Match:
    return Match(target=given) if field == "target" else Match(name=given) if field == "name" else Match(module=given)


def _near(given: str, present: list[str]) -> str:
    if not present:
        return "The nodes of this graph do not say theirs."
    plain = given.removeprefix("re:")
    close = difflib.get_close_matches(plain, present, n=3, cutoff=0.5)
    listing = close or present[:8]
    more = ", …" if not close and len(present) > 8 else ""
    return f"{'Near' if close else 'There are'}: {', '.join(listing)}{more}."
