"""Write src/npucompose/ops/npu_schemas.txt: the operators of a torch_npu wheel, for machines without one.

    python -m tools.read_schemas            # of the wheel that is found here
    python -m tools.read_schemas --tree DIR # of an unpacked one: the folder that holds torch_npu/

`+` is an operator that the wheel has a meta function for, `!` one that it keeps in every graph besides, `-` one without
a meta function. Operators that torch has too are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from npucompose.ops.catalogue import LISTED, META, SHIPPED, Catalogue, of_wheel
from npucompose.targets.npu_offline import wheel


def text_of(found: Catalogue) -> str:
    """The file's content."""
    head = f"# torch_npu {found.version}: schemas of {LISTED.as_posix()} as libtorch_npu.so registers them,\n"
    head += f"# and whether {META.as_posix()} has a meta function (+), keeps the operator in every graph too (!), or has none (-).\n"
    own = (name for name in found.schemas if not hasattr(torch.ops.aten, name.partition(".")[0]))
    return head + "".join(f"{mark(found, name)} {found.schemas[name]}\n" for name in own)


def mark(found: Catalogue, name: str) -> str:
    """What stands before the operator."""
    return "!" if name in found.effects else "+" if name in found.shaped else "-"


def main() -> None:
    """Read the wheel and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path)
    tree = parser.parse_args().tree or wheel.locate()
    SHIPPED.write_text(text_of(of_wheel(tree / "torch_npu", wheel.version(tree))), encoding="utf-8")


if __name__ == "__main__":
    main()
