"""model=python: arguments, a label, classes and modules, and inputs from a table or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import yaml

from npucompose.cli import main
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import Composer
from npucompose.errors import ConfigError
from npucompose.experiment.job import Job, settings_of, values_of
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.models.inputs import InputSpec, from_table
from npucompose.models.python import Python
from npucompose.report.words import choice
from npucompose.results.record import Figures, Report, choice_name

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d, depth=2):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(d, d) for _ in range(depth)))

    def forward(self, x, mask=None):
        return self.layers(x)


def make(d=64, *, depth=2, dtype=torch.float32, seed=1):
    return Block(d, depth).to(dtype), {"x": torch.full((2, d), float(seed))}


ready = Block(8)
"""
Write = Callable[[str], Path]
MINE = ("trust=true", "model=python", "mode=eager")


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """net.py in the working directory; the import is undone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    (tmp_path / "net.py").write_text(NET)
    yield tmp_path / "net.py"
    sys.modules.pop("net", None)


def checked(*overrides: str, config_dirs: tuple[str, ...] = ()) -> Checked:
    return check(Composer(config_dirs=config_dirs).compose([*MINE, *overrides]))


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_label_is_shown_and_locked_and_is_no_part_of_the_key() -> None:
    """Another name is not another result; another argument is."""
    jobs = [
        Job.from_composed(Composer().compose([*MINE, "pipeline=check", "model.factory=net:make", *more]))
        for more in ([], ["model.label=block"], ["model.label=block", "model.args.d=8"])
    ]
    unnamed, named, other = jobs
    assert named.key == unnamed.key != other.key
    assert named.keys == unnamed.keys
    assert named.keys["compile"] != other.keys["compile"]
    assert [job.ingredients.values["model"]["label"] for job in jobs] == ["net.make", "block", "block"]


def test_a_default_of_the_factory_cannot_be_referred_to_and_the_sentence_says_what_to_write() -> None:
    said = refused("model.factory=net:make", "benchmark.warmup=${model.args.d}")
    assert "benchmark.warmup refers to ${model.args.d}, and there is no such value" in said
    assert "write model.args.d=VALUE here or in the model's file" in said
    made = checked("model.factory=net:make", "model.args.d=8", "benchmark.warmup=${model.args.d}")
    assert made.experiment.benchmark.warmup == 8


def test_arguments_reach_the_factory_and_the_seed_too() -> None:
    built = Python(factory="net:make", args={"d": 16, "depth": 3}).build(5)
    assert len(built.module.layers) == 3
    assert torch.equal(built.inputs(0)["x"], torch.full((2, 16), 5.0))
    assert torch.equal(Python(factory="net:make", args={"seed": 9}).build(5).inputs(0)["x"], torch.full((2, 64), 9.0))


def test_a_class_is_called_and_a_module_is_taken_as_it_is() -> None:
    table = Python(factory="net:Block", args={"d": 4}, inputs=_spec([3, 4])).build(0)
    assert type(table.module).__name__ == "Block"
    assert table.inputs(0)["x"].shape == (3, 4)
    first, second = (Python(factory="net:ready", inputs=_spec([3, 8])).build(seed) for seed in (0, 1))
    assert first.module is not second.module is not sys.modules["net"].ready
    assert torch.equal(first.module.layers[0].weight, second.module.layers[0].weight)


def test_a_module_object_takes_no_arguments() -> None:
    with pytest.raises(ConfigError, match=r"'net:ready' is a module already: it takes no model.args"):
        Python(factory="net:ready", args={"d": 4}).build(0)


def test_a_module_without_inputs_is_told_what_forward_takes() -> None:
    with pytest.raises(ConfigError, match=r"of forward\(x, mask=None\): add 'model.inputs.x=\{sizes: \[4, 16\]\}'"):
        Python(factory="net:ready").build(0)


def test_inputs_of_the_configuration_stand_in_the_place_of_the_factorys() -> None:
    built = Python(factory="net:make", inputs=_spec([7, 64])).build(0)
    assert built.inputs(0)["x"].shape == (7, 64)
    assert not torch.equal(built.inputs(0)["x"], built.inputs(1)["x"])
    assert torch.equal(built.inputs(1)["x"], built.inputs(1)["x"])


def test_a_table_that_does_not_fit_forward_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the inputs that the configuration says: forward of Block .* 'y'"):
        Python(factory="net:make", inputs={"y": _spec([1])["x"]}).build(0)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.factory=net:make", "model.args.w=3"], "with the arguments w: it has no parameter 'w'"),
        (["model.factory=net:Block"], r"with no arguments: 'd' has no default and is missing"),
        (["model.factory=net:make", "model.args.dpeth=3"], r"did you mean 'depth'\?"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_imported(overrides: list[str], words: str) -> None:
    said = refused(*overrides)
    assert words.replace("\\", "") in said
    assert "Its signature is (" in said
    line = 7 if "net:Block" in said else 15
    assert f"net.py:{line}; an argument is model.args.NAME=VALUE" in said
    assert "net" not in sys.modules


def test_what_the_file_does_not_decide_is_refused_when_it_is_built(net: Path) -> None:
    net.write_text(NET + "\nimport functools\nmade = functools.partial(make, depth=1)\n")
    python = Python(factory="net:made", args={"w": 1})
    python.check()
    with pytest.raises(ConfigError, match=r"it has no parameter 'w'. Its signature is \(d=64, \*, depth=1, dtype="):
        python.build(0)


def test_a_factory_is_not_even_read_without_trust(net: Path) -> None:
    net.unlink()
    with pytest.raises(ConfigError) as caught:
        check(Composer().compose(["model=python", "model.factory=net:make", "model.args.w=3"]))
    assert len(caught.value.problems) == 1
    assert "trust is false" in str(caught.value)


def test_defaults_are_written_out_with_their_line_and_the_label_is_the_factory() -> None:
    found = checked("model.factory=net:make", "model.args.d=16")
    values, said_by = values_of(found)["model"], {one.option: one.said_by for one in settings_of(found)}
    assert values["args"] == {"d": 16, "depth": 2}  # dtype is no plain value
    assert values["label"] == "net.make"
    assert said_by["model.args.depth"] == "default of net.py:15"
    assert said_by["model.args.d"] == "command line"
    assert said_by["model.label"] == "the factory's name"


@pytest.mark.parametrize("trust", [True, False])
def test_cfg_shows_the_defaults_once_the_command_line_trusts(trust: bool, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=python", "model.factory=net:make", "model.args.d=16", *(["trust=true"] if trust else [])]
    assert main(["run", "--cfg", "job", "--package", "model", *words]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["args"] == ({"d": 16, "depth": 2} if trust else {"d": 16})
    assert shown["label"] == ("net.make" if trust else None)


def test_the_label_is_what_reports_call_it() -> None:
    found = checked("model.factory=net:make", "model.label=block")
    report = Report(key="0", status="ok", experiment=values_of(found))
    assert Figures.from_report(report).model == choice(report, "model") == choice_name(report.experiment, "model")
    assert choice(report, "model") == "block"
    assert choice(report, "mode") == "eager"


def test_a_label_is_a_plain_name() -> None:
    assert "'label' must be a plain name" in refused("model.factory=net:make", "model.label=a/b")


@pytest.fixture
def block(tmp_path: Path) -> str:
    """A configuration folder with a model of one's own."""
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "block.yaml").write_text(
        dedent(
            """
            # my block
            name: python
            label: block
            factory: net:Block
            args: {d: 32}
            inputs:
              x: {sizes: [4, "${model.args.d}"]}
            """
        )
    )
    return "my_conf"


def test_a_yaml_of_ones_own_is_chosen_by_its_name(block: str) -> None:
    found = checked("model=block", "model.args.d=64", config_dirs=(block,))
    assert found.model is not None
    assert found.model.title == "block"
    assert found.model.build(0).inputs(0)["x"].shape == (4, 64)


def test_a_yaml_of_ones_own_never_brings_trust(block: str, tmp_path: Path) -> None:
    file = tmp_path / "my_conf" / "model" / "block.yaml"
    with pytest.raises(ConfigError, match="trust is false"):
        check(Composer(config_dirs=[block]).compose(["model=block"]))
    file.write_text("# @package _global_\ntrust: true\nmodel: {name: python, factory: 'net:make'}\n")
    with pytest.raises(ConfigError, match=r"'trust' is true, and only the command line .*my_conf/model/block.yaml:2"):
        check(Composer(config_dirs=[block]).compose(["model=block"]))


def test_a_yaml_that_gives_its_own_name_as_the_models_is_told_what_to_write(block: str, tmp_path: Path) -> None:
    (tmp_path / "my_conf" / "model" / "block.yaml").write_text("name: block\nfactory: net:make\n")
    with pytest.raises(ConfigError, match=r"A model that a factory of yours makes has name: python.*label: block"):
        checked("model=block", config_dirs=(block,))


@pytest.mark.parametrize("own", [["model=mlp,block"], ["model=mlp,python", "model.factory=net:make"]])
def test_a_sweep_runs_what_is_legal_and_records_the_rest(block: str, own: list[str]) -> None:
    plan = SweepPlan.from_overrides(
        ["trust=true", "mode=eager", *own, "model.args.d=64,128"], Composer(config_dirs=[block])
    )
    legal = [point for point in plan.points if point.job is not None]
    assert [point.job.checked.model.args["d"] for point in legal if point.job] == [64, 128]  # type: ignore[union-attr]
    assert len(plan.illegal) == 2
    assert all("unknown key" in problem and "of model @" in problem for p in plan.illegal for problem in p.problems)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{sizes: [-1]}", "'sizes' must be at least 0"),
        ("{sizes: [2], range: [1, 1]}", "'range' must be [from, to]"),
        ("{sizes: [2], dtype: bool, range: [0, 1]}", "'range' says nothing of a bool"),
        ("{sizes: [2], dtype: int64, range: [0, 1.5]}", "'range' of int64 must be two integers"),
        ("{sizes: [2], dtype: float8}", "'dtype' must be one of"),
        ("{dtype: int64}", "'sizes' is missing"),
    ],
)
def test_a_table_of_inputs_that_says_nothing_that_can_be_made_is_refused(spec: str, words: str) -> None:
    assert words in refused("model.factory=net:make", f"model.inputs.x={spec}")


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ({"dtype": "int64", "range": (3, 9)}, 3, 8),
        ({"dtype": "uint8"}, 0, 1),
        ({"dtype": "bool"}, 0, 1),
        ({"dtype": "float16", "range": (-2, 2)}, -2, 2),
        ({"dtype": "bfloat16", "range": (0, 1)}, 0, 1),
    ],
)
def test_elements_lie_in_the_range(spec: dict[str, object], low: float, high: float) -> None:
    made = Python(factory="net:ready", inputs=_spec([64, 8], **spec))._own_inputs(3)  # type: ignore[arg-type]
    assert made is not None
    values = made(0)["x"]
    assert values.dtype == getattr(torch, str(spec["dtype"]))
    assert low <= float(values.float().min()) < float(values.float().max()) <= high


def test_inputs_differ_from_step_to_step_and_not_by_the_order_in_which_a_table_names_them() -> None:
    table = {"x": InputSpec(sizes=(4,)), "mask": InputSpec(sizes=(9,), dtype="int64", range=(0, 1000))}
    one, turned = (from_table(dict(items), 3) for items in (table.items(), reversed(table.items())))
    for step in (0, 1):
        assert all(torch.equal(one(step)[name], turned(step)[name]) for name in table)
    for name in table:
        assert not torch.equal(one(0)[name], one(1)[name])
        assert not torch.equal(one(0)[name], from_table(table, 4)(0)[name])


def test_inputs_come_from_a_saved_file(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(8.0).reshape(1, 8), "mask": None}, tmp_path / "inputs.pt")
    python = Python(factory="net:ready", inputs_file="inputs.pt")
    assert "inputs.pt" in python.source_files()
    assert torch.equal(python.build(0).inputs(0)["x"], torch.arange(8.0).reshape(1, 8))


def test_inputs_come_from_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"x": torch.ones(1, 8)}, tmp_path / "inputs.safetensors")
    built = Python(factory="net:ready", inputs_file="inputs.safetensors").build(0)
    assert torch.equal(built.inputs(0)["x"], torch.ones(1, 8))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


def test_a_file_of_inputs_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"x": Hostile()}, tmp_path / "inputs.pt")
    with pytest.raises(ConfigError, match=r"model.inputs_file=inputs.pt cannot be read: UnpicklingError"):
        Python(factory="net:ready", inputs_file="inputs.pt").build(0)
    assert not (tmp_path / "ran").exists()


def test_a_file_of_inputs_of_another_kind_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(1)], tmp_path / "inputs.pt")
    with pytest.raises(ConfigError, match="holds a list; it must be a dict"):
        Python(factory="net:ready", inputs_file="inputs.pt").build(0)
    assert "is read, no other" in refused("model.factory=net:ready", "model.inputs_file=inputs.csv")
    assert "there is no such file" in refused("model.factory=net:ready", "model.inputs_file=none.pt")


def test_inputs_are_said_once() -> None:
    said = refused("model.factory=net:ready", "model.inputs.x={sizes: [1, 8]}", "model.inputs_file=a.pt")
    assert "'inputs' and 'inputs_file' both say the inputs" in said


def _spec(sizes: list[int], **more: object) -> dict[str, object]:
    from npucompose.models.inputs import InputSpec

    return {"x": InputSpec(sizes=tuple(sizes), **more)}  # type: ignore[arg-type]
