"""Who set this? Values by who said them, in words and as JSON."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from npucompose.errors import ConfigError
from npucompose.report.explain import render_settings, settings_json
from npucompose.results.effective import Effective, Setting, origin, settings

VALUES = {
    "seed": 7,
    "mode.name": "eager",
    "compiler.ge_config.oo_level": "O3",
    "compiler.debug.run_eagerly": False,
    "strict": "mode",
    "trust": False,
}
PROVENANCE = {
    "seed": "command line",
    "mode": "conf/mode/eager.yaml, chosen on the command line",
    "compiler": "conf/compiler/default.yaml",
    "strict": "conf/config.yaml",
}
SETTINGS = settings(
    VALUES,
    PROVENANCE,
    (Effective(option="compiler.ge_config.oo_level", requested="O3", effective=None, why="takes effect in GE only"),),
)


def told(*, under: str = "") -> str:
    console = Console(file=io.StringIO(), width=80, record=True, color_system=None)
    render_settings(SETTINGS, console, under=under)
    return console.export_text()


def test_a_value_without_an_origin_has_that_of_what_it_lies_in() -> None:
    assert origin(PROVENANCE, "mode.name") == PROVENANCE["mode"]
    assert origin(PROVENANCE, "trust") == "default"


def test_the_command_line_comes_first_and_what_nobody_chose_last() -> None:
    assert told() == (
        "command line\n  seed=7\n"
        "conf/mode/eager.yaml, chosen on the command line\n  mode.name=eager\n"
        "conf/compiler/default.yaml\n  compiler.ge_config.oo_level=O3\n    has no effect: takes effect in GE only\n"
        "conf/config.yaml\n  strict=mode\n"
        "default\n  trust=false\n"
        "1 option of the compiler at their default: --under compiler lists them\n"
    )


def test_under_a_path_everything_is_listed() -> None:
    assert "compiler.debug.run_eagerly=false" in told(under="compiler")
    assert "seed" not in told(under="compiler")
    with pytest.raises(ConfigError, match="Did you mean 'compiler'"):
        told(under="compilr")


def test_json_has_every_value() -> None:
    rows = json.loads(settings_json(SETTINGS))
    assert {row["option"]: row["value"] for row in rows} == VALUES
    assert [row["option"] for row in rows if row["why_not"]] == ["compiler.ge_config.oo_level"]
    assert len(json.loads(settings_json(SETTINGS, under="mode"))) == 1
    assert Setting(**rows[0]) == SETTINGS[0]
