"""The figures of a public profile on docs/device_files.md: what the script writes, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import public_profile

HEAD = "Name,Type,Accelerator Core,Duration(us),Input Shapes,Output Shapes\n"


def test_the_table_says_source_rows_errors_and_coverage_and_goes_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f'aclnnAbs_Abs,Abs,AI_VECTOR_CORE,{2 + n % 4},"""{64 * (n % 4 + 1)}""","""{64 * (n % 4 + 1)}"""'
        for n in range(80)
    ]
    (tmp_path / "kernel_details.csv").write_text(HEAD + "\n".join([*rows, "x,Abs,HCCL,1,,"]) + "\n")
    page = tmp_path / "page.md"
    page.write_text(f"above\n{public_profile.BEGIN}\nold\n{public_profile.END}\nbelow\n")
    monkeypatch.setattr(public_profile, "PAGE", page)
    public_profile.main(
        [str(tmp_path / "kernel_details.csv"), "--soc", "a2", "--source", "somebody/somewhere", "--write"]
    )
    printed = capsys.readouterr().out
    assert printed.startswith("somebody/somewhere: 80 kernels with times and shapes, 1 rows left out.\n")
    assert "| single rows | all | 80 of 80 | 0.0% | 0.0% | 100.0% |" in printed
    assert "| whole sizes | pointwise | " in printed
    assert page.read_text() == f"above\n{public_profile.BEGIN}\n{printed}{public_profile.END}\nbelow\n"


def test_the_page_has_the_marks_and_figures_with_their_rows() -> None:
    page = public_profile.PAGE.read_text(encoding="utf-8")
    table = page.partition(public_profile.BEGIN)[2].partition(public_profile.END)[0]
    assert "| single rows | all | 418 of 418 | " in table
    assert "kernel_details.csv" in table
