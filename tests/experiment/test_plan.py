"""Which points a command line stands for, which are illegal, and who may run beside whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_free.executors.local import Slot, slot_for, slots
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, PlanContext
from npucompose.experiment.sweep.plan import SweepPlan, expanded
from npucompose.experiment.sweep.run import folder_of, make_folder
from npucompose.machine import usable_cores

COMPOSER = Composer()


def plan(*overrides: str) -> SweepPlan:
    return SweepPlan.from_overrides(overrides, COMPOSER)


def test_the_first_override_varies_slowest() -> None:
    assert expanded(["mode=eager,reduce-overhead", "model=add", "seed=range(1,3)"], COMPOSER) == [
        ("mode=eager", "model=add", "seed=1"),
        ("mode=eager", "model=add", "seed=2"),
        ("mode=reduce-overhead", "model=add", "seed=1"),
        ("mode=reduce-overhead", "model=add", "seed=2"),
    ]


def test_lists_of_passes_and_globs_are_values_too() -> None:
    assert expanded(["passes=[],[cse,stream_plan]"], COMPOSER) == [("passes=[]",), ("passes=[cse,stream_plan]",)]
    assert expanded(["pipeline=glob(c*)"], COMPOSER) == [("pipeline=check",), ("pipeline=compile_only",)]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=interval(1,2)", "names an interval; a sweep takes values"),
        ("hydra.job.name=a,b", "sweeps over a setting of Hydra"),
        ("seed=range(0,1000000)", "this sweep has more than 100,000 jobs"),
        ("model=glob(nothing*)", "stands for no value"),
        ("executor.jobs=1,2", "'executor' differs between the jobs"),
        ("hydra/launcher=basic", "executor=… says where"),
        ("hydra.sweeper.params={trust:true}", "sweeps are npucompose's own"),
        ("hydra.mode=RUN", "write -m for a sweep"),
    ],
)
def test_what_is_no_sweep_is_refused_with_a_sentence(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan("model=add", override)


def test_illegal_points_are_known_beforehand_and_the_others_have_a_key() -> None:
    found = plan("model=add", "mode=eager,reduce-overhead", "seed=1,-1", "compiler.ge_config.oo_level=O1,null")
    assert [found.name(point) for point in found.illegal] == [
        found.name(point) for point in found.points if point.job is None
    ]
    assert all(point.problems for point in found.illegal)
    with pytest.raises(ConfigError, match="'seed' must be >= 0"):
        plan("model=add", "seed=-1,-2")


def test_equal_points_share_a_key_and_where_they_run_is_not_in_it() -> None:
    one, two = plan("model=add", "seed=1,1").points
    assert one.key == two.key
    elsewhere = plan("model=add", "seed=1,1", "executor.jobs=3", "retry=failed")
    assert elsewhere.points[0].key == one.key
    assert elsewhere.again == "failed"
    assert plan("model=add", "seed=1,2").points[1].key != one.key


def test_settings_of_hydra_are_checked_and_belong_to_no_point() -> None:
    (point, _) = plan("model=add", "seed=1,2", "hydra.sweep.subdir=here").points
    assert point.overrides == ("model=add", "seed=1")
    assert point.key == plan("model=add", "seed=1,2").points[0].key
    with pytest.raises(ConfigError, match=r"unknown key 'hydra\.sweep\.subdirr'"):
        plan("model=add", "seed=1,2", "hydra.sweep.subdirr=here")


def test_a_point_is_named_by_what_varies() -> None:
    assert plan("model=add", "seed=1,2").name(plan("model=add", "seed=1,2").points[1]) == "seed=2"


def job(*overrides: str) -> Job:
    return Job.from_composed(COMPOSER.compose(["model=add", *overrides]))


CORES = usable_cores()
CPU_MEASURES = Slot(device="cpu", measures=True)
CPU_CHECKS = Slot(device="cpu", measures=False)


def test_only_a_job_that_measures_takes_the_whole_machine() -> None:
    assert slots(job("pipeline=bench"), ()) == (CPU_MEASURES,)
    assert slots(job("pipeline=check"), ()) == (CPU_CHECKS,)


def test_a_job_that_measures_on_the_cpu_runs_alone() -> None:
    assert slot_for([CPU_MEASURES], [], CORES) == CPU_MEASURES
    for taken in (CPU_MEASURES, CPU_CHECKS, Slot(device="npu:0", measures=True)):
        assert slot_for([CPU_MEASURES], [taken], 8) is None
        assert slot_for([CPU_CHECKS], [CPU_MEASURES], 8) is None


def test_jobs_that_measure_nothing_share_up_to_the_number_asked_for() -> None:
    assert slot_for([CPU_CHECKS], [CPU_CHECKS], 2) == CPU_CHECKS
    assert slot_for([CPU_CHECKS], [CPU_CHECKS] * 2, 2) is None


def test_devices_are_handed_out_one_measuring_job_on_each() -> None:
    from npucompose.targets.npu import NpuTarget

    wanted = [Slot(device=f"npu:{n}", measures=True, env=(("ASCEND_RT_VISIBLE_DEVICES", str(n)),)) for n in (4, 6)]
    assert NpuTarget.device_variable == "ASCEND_RT_VISIBLE_DEVICES"
    assert slot_for(wanted, [], CORES) == wanted[0]
    assert slot_for(wanted, [wanted[0]], CORES) == wanted[1]
    assert slot_for(wanted, wanted, CORES) is None
    assert slot_for(wanted, [CPU_MEASURES], CORES) is None
    checks = [Slot(device=slot.device, measures=False, env=slot.env) for slot in wanted]
    assert slot_for(checks, [wanted[0]], 8) is None
    assert slot_for(checks, [checks[0]], 8) == checks[1]


def test_a_target_takes_the_device_it_names_or_any_that_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from npucompose.targets.npu import NpuTarget

    monkeypatch.setattr(NpuTarget, "check", lambda *_: None)
    assert slots(job("target=npu", "target.index=2", "pipeline=check"), ()) == (Slot(device="npu:2", measures=False),)
    monkeypatch.setattr(NpuTarget, "name", "npu_of_a_package")  # another name is no other device
    assert job("target=npu", "target.index=2", "pipeline=check").device.kind == "npu"
    handed_out = slots(job("target=npu"), (4, 6))
    assert [slot.env for slot in handed_out] == [
        (("ASCEND_RT_VISIBLE_DEVICES", "4"),),
        (("ASCEND_RT_VISIBLE_DEVICES", "6"),),
    ]
    with pytest.raises(ConfigError, match=r"executor.devices=\[4, 6\] hands out devices"):
        plan("model=add", "target=npu", "target.index=1", "executor.devices=[4,6]", "seed=1,2")


def test_a_folder_holds_one_point_and_lies_inside_the_sweep(tmp_path: Path) -> None:
    one, other = plan("model=add", "seed=1,2").points
    made = folder_of(tmp_path, "0", one)
    make_folder(made, one, one.job or job())
    assert (made / ".hydra" / "overrides.yaml").read_text() == "- model=add\n- seed=1\n"
    (made / "report.json").write_text("{}")
    assert folder_of(tmp_path, "0", other) == tmp_path / "0.2"
    for name in ("..", "../x", "/tmp", "."):
        with pytest.raises(ConfigError, match="no folder below"):
            folder_of(tmp_path, name, one)


def test_what_is_remembered_of_a_target_is_of_its_options_too() -> None:
    """Two executors in one plan: other code replays, so their results have other keys, as in plans of their own."""
    around = PlanContext()

    def device(executor: str, context: PlanContext) -> Mapping[str, str]:
        composed = COMPOSER.compose(["model=add", f"target.executor={executor}"])
        return Job.from_composed(composed, context).ingredients.device

    together = [device(executor, around) for executor in ("native", "portable")]
    assert together == [device(executor, PlanContext()) for executor in ("native", "portable")]
    assert together[0] != together[1]
