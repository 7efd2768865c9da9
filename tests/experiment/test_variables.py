"""Every environment variable that the documentation, the configuration, the importer or a message of ours names reaches
a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from npucompose.experiment.orchestrator import PASSED, worker_environment
from npucompose.input_safety import SECRET
from npucompose.recipe import import_script
from npucompose.vendor.variables import FAMILIES, read_by_ascend, variables

ROOT = Path(__file__).parents[2]
NAMED = re.compile(
    r"(?:\bexport |\benviron(?:\.get\(|\[)[\"']|\bgetenv\([\"']|env_set\.|(?<![\w.$/{-]))"
    r"(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+)(?==[^=\s]|[\"'])"
)
"""`NAME=value`, `export NAME`, `os.environ["NAME"]` and a name in quotes."""
OTHERS = {
    # of a person's own, in examples
    "MY_MODEL_ROOT", "HF_TOKEN",
    # of make, of pip and of our own tests and tools
    "PIP_FLAGS", "SOURCE_DATE_EPOCH",
}  # fmt: skip
TEN = (
    "TNG_LOG_LEVEL", "TNG_HOST_COPY", "AUTOFUSE_FLAGS", "AUTOFUSE_DFX_FLAGS", "MULTI_STREAM_MEMORY_REUSE",
    "OOM_SNAPSHOT_ENABLE", "P2P_HCCL_BUFFSIZE", "RANK_TABLE_FILE", "INF_NAN_MODE_FORCE_DISABLE", "STREAMS_PER_DEVICE",
)  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    for folder, endings in {
        "docs": (".md",), "conf": (".yaml",), "airflow_free": (".py",), "src/npucompose": (".py", ".yaml"),
        "packages/*/src": (".py", ".yaml"),
    }.items():  # fmt: skip
        for path in sorted(file for place in ROOT.glob(folder) for file in place.rglob("*")):
            if path.suffix in endings and "decisions" not in path.parts and "simulator" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield "README.md", (ROOT / "README.md").read_text(encoding="utf-8")


def named() -> dict[str, str]:
    """{a variable: the file that names it}: written as one is set or read, and in no other meaning."""
    found: dict[str, str] = {}
    for place, text in texts():
        for one in NAMED.finditer(text):
            setting = text[one.end() : one.end() + 1] == "="
            reads = re.search(
                r"(environ|getenv|export |env_set)\W*$", text[max(0, one.start() - 9) : one.start("name")]
            )
            if reads or (setting and not re.match(r"\s*[A-Z_]+ = ", text[one.start() :])):
                found.setdefault(one["name"], place)
    return found


def passes(names: Iterator[str] | list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Those that a worker sees."""
    for name in (asked := list(names)):
        monkeypatch.setenv(name, "1")
    return set(worker_environment({})) & set(asked)


def test_every_variable_that_a_text_names_reaches_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {name: place for name, place in named().items() if name not in OTHERS and not SECRET.search(name)}
    assert {"ASCEND_LAUNCH_BLOCKING", "TNG_LOG_LEVEL", "NPUCOMPOSE_PASS_ENV"} <= set(asked)
    seen = passes(list(asked), monkeypatch)
    assert {name: place for name, place in asked.items() if name not in seen} == {}


def test_every_variable_that_ascends_software_reads_reaches_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(variables()) > 250
    assert all(len(source.split()) == 2 for source in variables().values())
    asked = [name for name in (*variables(), *TEN) if not SECRET.search(name)]
    assert passes(asked, monkeypatch) == set(asked)


def test_what_ascends_software_reads_the_importer_lists() -> None:
    names = [*variables(), *TEN, "MY_OWN"]
    lines = "".join(f"os.environ[{name!r}] = '1'\n" for name in names)
    found = import_script(f"import os, torchair\nconfig = torchair.CompilerConfig()\n{lines}")
    assert {one.code for one in found.unread} == {f"os.environ[{name!r}] = '1'" for name in names if name != "MY_OWN"}


def test_what_no_software_reads_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    assert passes(["MY_OWN", "STREAMS_PER", "RANK_TABLE_FILES"], monkeypatch) == set()
    assert PASSED["Ascend"][: len(FAMILIES)] == FAMILIES
    assert not read_by_ascend("STREAMS_PER")
