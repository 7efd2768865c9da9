"""README of one's own module, followed by a person who has one: from there to a benchmark in three commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npucompose.cli import main
from tests.docs.blocks import ROOT, Block, Command, blocks
from tests.docs.test_pages import run, shell

SENTENCE = "From your own module to its benchmark takes three\ncommands"
OWN = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, tokens, scale):
        first, second = self.out(self.norm(tokens)).chunk(2, dim=-1)
        return torch.tanh(first) * second * scale


def make(width=32):
    return Mine(width), {"scale": 2.0, "tokens": torch.randn(4, width)}
"""
"""It has nothing of the one that `npucompose new` writes."""


def after(sentence: str) -> list[Block]:
    """README's blocks behind a sentence."""
    page = ROOT / "README.md"
    line = page.read_text().partition(sentence)[0].count("\n") + 1
    return [block for block in blocks(page) if block.line > line]


def three() -> list[Command]:
    return list(after(SENTENCE)[0].commands())


def test_readme_says_it_in_three_commands_and_names_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SENTENCE in (ROOT / "README.md").read_text()
    first, *others = three()
    assert len(others) <= 2
    assert all(" model=my_block " in f"{one.text} " for one in others)
    monkeypatch.chdir(tmp_path)
    assert main(first.text.split()[1:]) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set(first.line.partition("# ")[2].partition(":")[0].split(", "))


def reports(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("report.json"))]


@pytest.mark.slow
def test_a_module_of_ones_own_is_benchmarked_in_three_commands(tmp_path: Path) -> None:
    environment = shell(tmp_path)
    first, second, third = three()
    run(first, tmp_path, environment)
    (tmp_path / "my_block.py").write_text(OWN)  # "put yours in"
    assert "result" in run(second, tmp_path, environment)
    (report,) = reports(tmp_path / "outputs")
    judged(report)
    run(third, tmp_path, environment)
    swept = reports(tmp_path / "multirun")
    assert len(swept) == 2
    for one in swept:
        judged(one)


@pytest.mark.slow
def test_a_module_that_one_has_already_needs_one_command(tmp_path: Path) -> None:
    environment = shell(tmp_path)
    file, command = after(SENTENCE)[1:3]
    assert file.file == "my_module.py"
    file.put(tmp_path)
    (tmp_path / file.file).write_text(OWN)
    (line,) = command.commands()
    run(line, tmp_path, environment)
    (report,) = reports(tmp_path / "outputs")
    judged(report, label="mine")


def judged(report: dict[str, object], label: str = "my_block") -> None:
    """It was measured, beside eager, and is called what its owner calls it."""
    assert report["status"] == "ok"
    assert report["numerics"]["bitwise"]  # type: ignore[index]
    assert report["experiment"]["model"]["label"] == label  # type: ignore[index]
    assert report["stages"]["benchmark"]["speedup"]["eager"] > 0  # type: ignore[index]
