"""Write src/npucompose/ops/npu_schemas.txt: the schemas of a torch_npu wheel's operators, for machines without one.

    python -m tools.read_schemas            # of the wheel that is found here
    python -m tools.read_schemas --tree DIR # of an unpacked one: the folder that holds torch_npu/

`!` marks an operator that the wheel keeps in every graph. Operators that torch has too are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from npucompose.ops.catalogue import LISTED, META, SHIPPED, Catalogue, of_wheel
from npucompose.targets.npu_offline import wheel


def text_of(found: Catalogue) -> str:
    """The file's content."""
    head = f"# torch_npu {found.version}: schemas of {LISTED.as_posix()} as libtorch_npu.so registers them;\n"
    head += f"# an operator that {META.as_posix()} keeps in every graph is marked (!). tools/read_schemas.py\n"
    own = (name for name in found.schemas if not hasattr(torch.ops.aten, name.partition(".")[0]))
    return head + "".join(f"{'!' if name in found.effects else ' '} {found.schemas[name]}\n" for name in own)


def main() -> None:
    """Read the wheel and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path)
    tree = parser.parse_args().tree or wheel.locate()
    SHIPPED.write_text(text_of(of_wheel(tree / "torch_npu", wheel.version(tree))), encoding="utf-8")


if __name__ == "__main__":
    main()
