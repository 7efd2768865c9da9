"""Values of which every text is hostile: made from the types themselves, so that no field can be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

HOSTILE = (
    "</script></style></title><script>window.ran=1</script><img src=x onerror=window.ran=2>"
    "<svg onload=window.ran=3>\"'>&\u2028<!--"
)


def filled(hint: Any) -> Any:
    """`filled(Report)`: every field there, nothing empty, HOSTILE wherever text can be."""
    origin, arguments = get_origin(hint), get_args(hint)
    if attrs.has(hint):
        return hint(**{f.alias: filled(get_type_hints(hint)[f.name]) for f in attrs.fields(hint) if f.name != "schema"})
    if origin in (Union, UnionType):
        return filled(str if str in arguments else next(a for a in arguments if a is not type(None)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (filled(arguments[0]),) if arguments[-1] is Ellipsis else tuple(map(filled, arguments))
    if origin is Mapping:
        return {filled(arguments[0]): filled(arguments[1])}
    return {bool: True, int: 3, float: 3.0}.get(hint, HOSTILE)
