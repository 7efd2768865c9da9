"""Attention over a cache in pages: lists of lengths are path 4 where the tiling sinks, as without the pages."""

from __future__ import annotations

import pytest

from npucompose.cli import main
from tests.npu.needs import offline

CHOSEN = ("model=paged_decode", "mode=max-autotune", "target.soc=ascend910b")
MARKED = ("shapes=dynamic", "shapes.mark_static=[x,cos,sin,slots,block_table]")


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status of `npucompose explain`, and the path at the right of the head."""
    status = main(["explain", *CHOSEN, *words])
    said = capsys.readouterr()
    assert said.err == ""
    return status, said.out.splitlines()[0].rpartition("  ")[2].strip()


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
@pytest.mark.parametrize("target", ["cpu", pytest.param("npu_offline", marks=[offline, pytest.mark.slow])])
def test_lists_of_lengths_beside_a_block_table_are_path_4(
    target: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (f"target={target}", f"model.layout={layout}", *MARKED, "tiling=sink")
    assert explained(capsys, *asked) == (0, "path 4")


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("words", "path"),
    [(MARKED, "path 3"), (("shapes=dynamic", "tiling=sink"), "path 2"), (("shapes=static", "tiling=sink"), "path 1")],
)
def test_and_without_the_sink_or_with_other_sizes_another(
    words: tuple[str, ...], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(capsys, "target=cpu", *words) == (0, path)
