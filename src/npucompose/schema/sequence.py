"""`model.sequence`: calls after the first one, each as what it changes in the inputs. Knows no tensor.

sequence:
  - {x.0: 6}                           # dimension 0 of x has size 6
  - {times: 4, lens: [513, 301, 7]}    # another number; another list, of another length too
  - {x: transposed}                    # the same sizes, the strides of a transposed tensor
  - {x.0: 7, x: unmarked}              # a tensor that nobody marked as `shapes` says
  - {}                                 # the shapes and numbers of the example inputs again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

Word = Literal["transposed", "unmarked"]
WORDS: tuple[Word, ...] = get_args(Word)
Change: TypeAlias = int | float | bool | Word | tuple[int, ...]
Call: TypeAlias = Mapping[str, Change]
"""{input, or input.dimension: its change}."""


def dimension_of(key: str) -> tuple[str, int | None]:
    """`x.0` is ("x", 0), `x` is ("x", None); a name with another ending is a name."""
    name, _, last = key.rpartition(".")
    return (name, int(last)) if name and last.isdecimal() else (key, None)


def told(call: Call) -> str:
    """The call as it stands in YAML: `x.0: 6, lens: [513, 301]`; `the example inputs` where it changes nothing."""
    values = {key: list(change) if isinstance(change, tuple) else change for key, change in call.items()}
    return ", ".join(f"{key}: {value}" for key, value in values.items()) or "the example inputs"
