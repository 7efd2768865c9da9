"""docs/sinking.md shows the project's own output and its own tables; `--update-golden` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npucompose.cli import main
from npucompose.compose.conf import conf_dir
from npucompose.npu.static_graph.operators import shipped_table
from npucompose.npu.static_graph.verdicts import BY_PATH
from tests.npu.needs import offline

pytestmark = pytest.mark.usefixtures("warm_workers")

DOCUMENT = Path(__file__).parents[2] / "docs" / "sinking.md"
SAID = {True: "yes", False: "no", None: "unknown"}


def check(pattern: str, text: str, update: bool) -> None:
    """The part of the document that `pattern` finds is `text`."""
    document = DOCUMENT.read_text()
    found = re.search(pattern, document, re.S)
    assert found is not None, pattern
    if update:
        DOCUMENT.write_text(document[: found.start(1)] + text + document[found.end(1) :])
        return
    assert found.group(1) == text


def table(*rows: tuple[str, ...]) -> str:
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def paths() -> str:
    """The presets' own first lines, and the verdicts that the rules know them by."""
    rows: list[tuple[str, ...]] = []
    for path, verdicts in BY_PATH.items():
        first = (conf_dir() / "experiment" / f"fa_path{path}.yaml").read_text().splitlines()[1]
        rows.append((str(path), first.partition("): ")[2], *verdicts))
    return table(("path", "what it takes", "FX graph", "GE graph", "GE build"), *rows)


def operators() -> str:
    rows = [
        (f"`{name}`", row.ge, ", ".join(row.slots), SAID[row.sinks], row.source)
        for name, row in shipped_table().operators.items()
    ]
    return table(("operator", "GE's type", "what its tiling reads", "sinks", "source"), *rows)


def products() -> str:
    rows = [(f"`{name}`", p.title, SAID[p.sinks], p.source) for name, p in shipped_table().products.items()]
    return table(("product", "is", "sinks tiling", "source"), *rows)


@pytest.mark.parametrize("name", ["paths", "operators", "products"])
def test_a_table_is_that_of_the_code(name: str, request: pytest.FixtureRequest) -> None:
    text = {"paths": paths, "operators": operators, "products": products}[name]()
    check(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, request.config.getoption("--update-golden"))


@pytest.mark.parametrize(
    "command",
    [
        "experiment=fa_path3 target=cpu target.soc=ascend910b",
        pytest.param("experiment=fa_path4", marks=[offline, pytest.mark.slow]),
    ],
)
def test_a_command_prints_what_the_document_shows(
    command: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    assert main(["explain", *command.split()]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if not line.startswith("  compiled in ")]
    shown = rf"\$ npucompose explain {re.escape(command)}\n(.*?)```"
    check(shown, "\n".join(lines) + "\n", request.config.getoption("--update-golden"))
