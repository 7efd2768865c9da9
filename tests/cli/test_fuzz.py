"""Any text at all as an override: a legal job or a ConfigError with sentences, nothing else, and nothing on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npucompose.compose.conf import conf_dir
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, PlanContext
from npucompose.vendor.compiler import EVERY_LEAF
from tests.searches import examples
from tools.layout import choices

GROUPS = sorted(folder.name for folder in conf_dir().iterdir() if folder.is_dir())
CHOICES = sorted({file.stem for file in choices().values()})
KEYS = [
    *GROUPS, *(f"compiler.{path}" for path in EVERY_LEAF), "seed", "strict", "trust", "retry", "debug",
    "compile.fullgraph", "logs.levels", "logs.artifacts", "expect.speedup", "expect.fx_graph", "streams.plan",
    "streams.max_streams", "streams.kind", "model.name", "model.factory", "target.name", "target.index",
    "pipeline.stages", "passes.cse", "passes.cse.stage", "passes.stream_plan", "shapes.gears", "shapes.mark_dynamic",
    "benchmark.min_calls", "executor.devices", "hydra.run.dir", "hydra.job.name", "hydra/launcher", "nothing",
    "model@passes", "a/b", "..", "",
]  # fmt: skip
ODD = [
    "null", "true", "1", "-1", "0", "1e400", "nan", ".inf", "''", "???", "~", "${seed}", "${oc.env:HOME}", "${passes}",
    "../../x", "s0", "x0", "*", "re:(", "auto", "aten.mm.default", "1_0", "0x10",
]  # fmt: skip
ATOMS = st.one_of(st.sampled_from(CHOICES), st.sampled_from(ODD), st.text(max_size=8))
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.dictionaries(ATOMS, inner, max_size=2).map(lambda d: "{" + ",".join(f"{k}:{v}" for k, v in d.items()) + "}"),
        st.lists(inner, min_size=2, max_size=2).map(",".join),
    ),
    max_leaves=4,
)
OVERRIDE = st.one_of(
    st.builds(
        lambda prefix, key, value: f"{prefix}{key}={value}", st.sampled_from(["", "", "", "+", "++", "~"]),
        st.sampled_from(KEYS), VALUES,
    ),
    st.builds(lambda group, name: f"{group}={name}", st.sampled_from(GROUPS), st.sampled_from(CHOICES)),
    st.builds(lambda name: f"passes=[{name},stream_plan]", st.sampled_from(CHOICES)),
    st.text(max_size=12),
)  # fmt: skip

COMPOSER, AROUND = Composer(), PlanContext()


def look(overrides: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = outcome(overrides)
    if isinstance(found, Job):
        assert len(found.key) == 64
        assert not found.composed.problems
    else:
        assert found.problems
        assert all(problem.strip() and "Traceback" not in problem for problem in found.problems)
    assert not list(folder.iterdir())


def outcome(overrides: list[str]) -> Job | ConfigError:
    try:
        return Job.from_composed(COMPOSER.compose(overrides), AROUND)
    except ConfigError as error:
        return error


ANYWAY = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=ANYWAY)
@given(overrides=st.lists(OVERRIDE, max_size=4))
def test_no_override_gets_past_the_checks(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(overrides, tmp_path, monkeypatch)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=ANYWAY)
@given(overrides=st.lists(OVERRIDE, max_size=5))
def test_no_override_of_many_gets_past_the_checks(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(overrides, tmp_path, monkeypatch)
