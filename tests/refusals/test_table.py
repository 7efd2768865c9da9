"""Every refusal of what a stranger wrote, in one table: an input that is refused by this rule and by no other.

The rules are the statements of the readers that raise, or that give a sentence to who asks (`rules.py` finds them).
Each row is read twice: as the product is, and with this one statement taken out of it, within limits of time and
memory. Why a value of a script is not known (`Unknown(why=…)`) is no rule: the rule is that its line is reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.refusals import (
    artefacts,
    deployments,
    device_files,
    devices,
    engines,
    foreign,
    protocols,
    records,
    scripts,
    texts,
    traces,
)
from tests.refusals.case import ACCEPTED, Case
from tests.refusals.limits import TooMuch, limited
from tests.refusals.rules import rules_of, without
from tools.layout import product

CASES = (
    *texts.CASES, *foreign.CASES, *scripts.CASES, *engines.CASES, *artefacts.CASES, *records.CASES, *devices.CASES,
    *traces.CASES, *protocols.CASES, *deployments.CASES, *device_files.CASES,
)  # fmt: skip
TABLE = dict.fromkeys(case.module for case in CASES)
READS = re.compile(
    r"(?<!_)json\.loads?\(|yaml\.safe_load|yaml\.parse|\.read_(text|bytes)\(|\bread_text\(|sqlite3\.connect|ast\.parse"
)
NO_STRANGERS = {
    "npucompose.streams.ranks": "orders that the processes of one job exchange through the store of their group",
    "npucompose.registry": "which files a module imports, of code that a person has to trust",
    "npucompose.cli.new": "the package's own texts",
    "npucompose_extras.pretrained.huggingface": "a model's folder: packages/extras/tests/models/test_folder.py",
    "npucompose.models.factory": "a file that a person trusts, and what cannot be read is left to Python",
    "npucompose.vendor.inductor_source": "the installed torch",
    "npucompose.vendor.versions": "the package's own table",
    "npucompose.report.html": "our own templates",
    "npucompose.report.doctor": "what our own process answers",
    "npucompose.recipe.ejected": "what is written, and not read",
    "npucompose_devtools.device_kit.kit_files.run_kit": "its own kit, on another host",
    "npucompose_devtools.device_kit.kit_files.observe": "its own kit, on another host",
    "npucompose_devtools.device_kit": "a text for results.premises, and our own files",
    "npucompose.experiment.job": "a text for schema.premises",
    "npucompose.experiment.verify": "a text for schema.premises",
    "npucompose.compose.conf": "a file that the composer has read, for the numbers of its lines",
    "npucompose.recipe.python_text": "what is written, and not read",
    "npucompose.targets.npu_offline.wheel": "the vendor's wheel: tests/targets/npu_offline/test_wheel.py",
    "npucompose.targets.npu_offline.option_trees": "what our own process answers",
    "npucompose_replay.executor.build": "torch; a user's own folder: test_build.py",
    "npucompose_replay.executor.held_kernels": "torch's own headers",
    "npucompose_replay.executor.tables": "a user's own folder: test_calibration.py",
    "npucompose.machine": "the kernel's files",
    "npucompose.measure.environment": "the kernel's files",
    "npucompose.measure.profile": "what the profiler has just written",
    "npucompose.vendor.devices": "the package's own table",
    "npucompose.vendor.variables": "the package's own table",
    "npucompose.vendor.wheel_operators": "the package's own tables",
    "npucompose.vendor.converter_conditions": "conditions of the package's own tables",
    "npucompose.npu.capture.codes": "the package's own table",
    "npucompose.ops.catalogue": "the package's own table, and the vendor's wheel: tests/ops/test_catalogue.py",
    "npucompose.targets.npu_offline.operator_lists": "the vendor's wheel: test_operator_tables.py",
    "npucompose.npu.static_graph.operators": "the package's own table",
    "airflow_free.forkserver": "what our own process is given",
    "airflow_free.processes": "the kernel's files",
    "npucompose_extras.trackers": "a parameter that our own tracker has written",
    "npucompose.private": "a user's own folder: tests/test_private.py",
    "npucompose_replay.products.winners": "a user's own folder: test_winners.py",
    "npucompose_replay.kept.files": "a user's own folder: test_kept_graphs.py",
    "npucompose_replay.kept.weight_pages": "the kernel's files, and weights of which any bytes will do",
    "npucompose_replay.kept.traced_key": "this package's sources and those of a person's passes, for a digest",
    "npucompose_replay.inductor.code": "what the installed torch has just generated",
    "npucompose_extras.search.study": "what was written in the same call",
    "airflow_free.executors": "what a worker of the sweep has just written",
    "airflow_free.stage": "what was written in the same call",
    "airflow_free.outcome": "what our own process answers: tests/airflow_free/test_hostile_jobs.py",
    "npucompose.experiment.tracking": "what our own process is given",
    "npucompose_vllm.installed": "what our own process answers: packages/vllm/tests/test_requested.py",
    "npucompose_vllm.compiler": "our own answer, out of the file in which vLLM keeps it",
    "npucompose.vendor.compiler": "the package's own table",
    "npucompose.targets.npu_offline.converter_guards": "the wheel's own Python",
    "npucompose.targets.npu_offline.converter_expressions": "the wheel's own Python",
    "npucompose_extras.engine_dialects.vllm_ascend_versions": "the package's own table",
    "airflow_free.keys": "what is hashed, and not read",
}
"""Modules that read something, and why they have no rows."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_one_rule_refuses_only_that_rule_refuses(case: Case, tmp_path: Path) -> None:
    (rule,) = case.found()
    assert case.said in case.outcome(tmp_path / "as it is")
    with without(rule):
        otherwise = case.outcome(tmp_path / "without")
    assert case.said not in otherwise
    assert otherwise == ACCEPTED if case.otherwise == ACCEPTED else case.otherwise in otherwise


@pytest.mark.parametrize("module", TABLE)
def test_every_rule_of_a_reader_has_a_case(module: str) -> None:
    having = {rule for case in CASES if case.module == module for rule in case.found()}
    assert [str(rule) for rule in rules_of(module) if rule not in having] == []


def test_every_module_that_reads_is_in_the_table_or_named_with_a_reason() -> None:
    reading = set()
    for package, top in product().items():
        for file in top.rglob("*.py"):
            if "simulator" not in file.parts and READS.search(file.read_text(encoding="utf-8")):
                reading.add(".".join([package, *file.relative_to(top).with_suffix("").parts]).removesuffix(".__init__"))
    assert reading <= {*TABLE, *NO_STRANGERS}
    assert set(NO_STRANGERS) <= reading


def hangs() -> None:
    while True:
        pass


def waits() -> None:
    time.sleep(60)


def grows() -> None:
    [bytes(1 << 20) for _ in range(1 << 20)]


@pytest.mark.parametrize(
    ("act", "limit", "kind"),
    [
        (hangs, partial(limited, processor_s=0.2), TooMuch),
        (waits, partial(limited, waiting_s=0.4), TooMuch),
        (grows, partial(limited, memory=64 << 20), MemoryError),
    ],
)
def test_what_hangs_waits_or_grows_is_ended(
    act: Callable[[], None], limit: Callable[[], AbstractContextManager[None]], kind: type[BaseException]
) -> None:
    """One limit each: memory that this process has freed before costs time before more is asked for."""
    begun = time.monotonic()
    with pytest.raises(kind), limit():
        act()
    assert time.monotonic() - begun < 20
