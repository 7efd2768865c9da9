"""msprobe's dump.json and stack.json: names, nested arguments, statistics and the model's line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.results.artefacts import DumpedOperator, DumpedValue
from npucompose_devtools.device_files import msprobe

TENSOR = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [2, 3], "Max": 1, "Min": -1.5, "Mean": None}
READ = {"dtype": "bfloat16", "shape": (2, 3), "statistics": {"Max": 1.0, "Min": -1.5}}


def read(folder: Path, data: Any, stack: Any = None) -> tuple[DumpedOperator, ...]:
    (folder / "dump.json").write_text(json.dumps({"data": data}))
    if stack is not None:
        (folder / "stack.json").write_text(json.dumps(stack))
    found = msprobe.read(folder)
    assert found is not None
    assert (found.name, found.path) == (folder.name, folder / "dump_tensor_data")
    return found.operators


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("Functional.linear.5.forward", "linear"),
        ("Torch.add.0.backward", "add"),
        ("Module.layers.0.mlp.Linear.forward.0", "Linear"),
        ("Cell.head.Dense.backward.3", "Dense"),
        ("Module.forward.Norm.forward.0", "Norm"),
        ("Module.lost", "lost"),
        ("Distributed.all_reduce", "all_reduce"),
        ("alone", "alone"),
    ],
)
def test_an_operator_is_named_by_its_call(name: str, operator: str, tmp_path: Path) -> None:
    (found,) = read(tmp_path, {name: {"output": TENSOR}})
    assert (found.name, found.operator, found.source) == (name, operator, None)


def test_arguments_are_counted_by_where_they_lie(tmp_path: Path) -> None:
    call = {
        "input_args": [TENSOR, [TENSOR, {"type": "int", "value": 3}], {"type": "torch.nn.parameter.Parameter"}],
        "input_kwargs": {"mask": TENSOR, "pairs": {"a": [TENSOR]}, "type": TENSOR},
        "input": TENSOR,
        "output": {"type": "mindspore.Tensor", "dtype": "Float32", "shape": []},
    }
    (found,) = read(tmp_path, {"Torch.f.0.forward": call, "Torch.no_tensor.0.forward": {"output": None}, "note": 3})
    bare = DumpedValue(slot="2", file=None, dtype=None, shape=None, statistics={})
    assert found.inputs == (
        *(DumpedValue(slot=slot, file=None, **READ) for slot in ("0", "1.0")),
        bare,
        *(DumpedValue(slot=slot, file=None, **READ) for slot in ("0", "mask", "pairs.a.0", "type")),
    )
    assert found.outputs == (DumpedValue(slot="0", file=None, dtype="float32", shape=(), statistics={}),)


def test_lists_are_read_to_a_depth_and_no_further(tmp_path: Path) -> None:
    def within(lists: int) -> Any:
        held: Any = TENSOR
        for _ in range(lists):
            held = [held]
        return held

    (found,) = read(tmp_path, {"Torch.f.0.forward": {"input_args": within(8), "output": [within(8)]}})
    assert [one.slot for one in found.inputs] == ["0.0.0.0.0.0.0.0"]
    assert found.outputs == ()


@pytest.mark.parametrize(
    ("held", "file", "shape", "statistics"),
    [
        ({"data_name": "Torch.f.0.forward.output.0.pt"}, "Torch.f.0.forward.output.0.pt", None, {}),
        ({"data_name": "a-b_c.npy", "shape": [1]}, "a-b_c.npy", (1,), {}),
        ({"data_name": "../a.pt"}, None, None, {}),
        ({"data_name": "a.txt", "shape": [1, "x"]}, None, None, {}),
        ({"data_name": 3, "shape": "12"}, None, None, {}),
        ({"Max": 10**400, "Min": "1", "Mean": -0.5, "Norm": 2, "Other": 1}, None, None, {"Mean": -0.5, "Norm": 2.0}),
        ({"Max": math.inf}, None, None, {"Max": math.inf}),
    ],
)
def test_of_a_tensor_its_file_shape_and_statistics_are_taken(
    held: dict[str, Any], file: str | None, shape: tuple[int, ...] | None, statistics: dict[str, float], tmp_path: Path
) -> None:
    (found,) = read(tmp_path, {"Torch.f.0.forward": {"output": [{"type": "numpy.ndarray", **held}]}})
    (value,) = found.outputs
    assert (value.file, value.shape, dict(value.statistics), value.dtype) == (file, shape, statistics, None)


OWN = "File /srv/app/model.py, line 13, in forward, \n return x + 1"
TORCH = "File /x/site-packages/torch/nn/module.py, line 5, in call, \n hook()"
HOOK = "File /srv/msprobe/pytorch/hook.py, line 7, in run, \n run()"
LATER = "File /srv/app/main.py, line 2, in main, \n model(x)"


@pytest.mark.parametrize(
    ("stack", "source"),
    [
        ({"Torch.f.0.forward": [TORCH, HOOK, OWN, LATER]}, True),
        ({"0": [["Torch.other.0.forward", "Torch.f.0.forward"], [TORCH, OWN]]}, True),
        ({"Torch.f.0.forward": [3, "no frame", OWN]}, True),
        ({"Torch.f.0.forward": [TORCH, HOOK]}, False),
        ({"Torch.f.0.forward": OWN}, False),
        ({"Torch.g.0.forward": [OWN]}, False),
    ],
)
def test_the_innermost_line_of_the_model_is_the_operators(stack: dict[str, Any], source: bool, tmp_path: Path) -> None:
    (found,) = read(tmp_path, {"Torch.f.0.forward": {"output": TENSOR}}, stack)
    assert found.source == ("model.py:13 in forward: return x + 1" if source else None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no whole JSON (JSONDecodeError)."),
        ("[" * 100_000, "is no whole JSON (RecursionError)."),
        ("[]", "holds no names: it is no file of msprobe."),
        ("{}", "has no 'data': it is no dump of msprobe."),
        ('{"data": []}', "has no 'data': it is no dump of msprobe."),
        ('{"data": {"a": {"output": 1}}}', "has no operator with a tensor: dump with level L0, L1 or mix."),
    ],
)
def test_what_is_no_dump_is_refused(text: str, says: str, tmp_path: Path) -> None:
    assert msprobe.read(tmp_path) is None
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        msprobe.read(tmp_path)
    assert str(refused.value) == f"{tmp_path / 'dump.json'} {says}"


def test_a_dump_has_at_most_so_many_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msprobe, "MOST_OPERATORS", 2)
    two = {name: {"output": TENSOR} for name in ("a", "b")}
    assert [one.name for one in read(tmp_path, two)] == ["a", "b"]
    with pytest.raises(ConfigError, match="has more than 2 operators: dump one step"):
        read(tmp_path, {**two, "c": {}})
