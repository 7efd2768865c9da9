"""What an installed vLLM is asked, and what is printed of its answer: a module of that name answers."""

from __future__ import annotations

import enum
import json
import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from npucompose_vllm import CPU, READ_AT, installed, register


class Mode(enum.Enum):
    WHOLE = 3


@dataclass
class Passes:
    noops: bool = True
    level: Mode = Mode.WHOLE


@dataclass
class Compilation:
    mode: Mode = Mode.WHOLE
    sizes: Any = (1, (2, Mode.WHOLE))
    share: float = 0.5
    nothing: Any = None
    passes: Passes = field(default_factory=Passes)
    inductor_compile_config: dict[str, Any] = field(default_factory=lambda: {"a": Mode.WHOLE, "b": {1}})
    inductor_passes: Any = "text"
    other: dict[str, Any] = field(default_factory=lambda: {"a": 1})
    derived: int = field(default=7, init=False)


class CpuPlatform:
    pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the two classes of vLLM were given; its compilation configuration says which error is raised."""
    given: dict[str, Any] = {}

    class SchedulerConfig:
        def __init__(self, **options: Any) -> None:
            given["scheduler"] = options

    class VllmConfig:
        def __init__(self, compilation_config: Any, additional_config: Any, scheduler_config: Any) -> None:
            given.update(compilation=compilation_config, additional=additional_config)
            assert isinstance(scheduler_config, SchedulerConfig)
            if "wrong" in compilation_config:
                raise ValueError(compilation_config["wrong"])
            self.compilation_config = Compilation()

    config, platforms = ModuleType("vllm.config"), ModuleType("vllm.platforms")
    config.__dict__.update(SchedulerConfig=SchedulerConfig, VllmConfig=VllmConfig)
    platforms.__dict__.update(current_platform=CpuPlatform())
    for name, module in {"vllm": ModuleType("vllm"), "vllm.config": config, "vllm.platforms": platforms}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return given


def answer(capsys: pytest.CaptureFixture[str], compilation: dict[str, Any], most: int = 64) -> Any:
    installed.main({"recipe": "r.yaml", "compilation": compilation, "most": most})
    printed = capsys.readouterr().out
    assert printed.startswith(installed.MARK)
    assert printed.count("\n") == 1
    return json.loads(printed.removeprefix(installed.MARK))


def test_options_are_printed_by_dotted_names_as_they_act(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, {"mode": 3}) == {
        "platform": "CpuPlatform",
        "options": {
            "mode": "WHOLE", "sizes": [1, [2, "WHOLE"]], "share": 0.5, "nothing": None, "passes.noops": True,
            "passes.level": "WHOLE", "inductor_compile_config.a": "WHOLE", "inductor_compile_config.b": "{1}",
            "inductor_passes": "text", "other": "{'a': 1}",
        },
    }  # fmt: skip


@pytest.mark.parametrize(("most", "sequences"), [(1, 1), (128, 128), (129, 128), (8192, 128)])
def test_vllm_is_asked_with_the_recipe_and_a_scheduler_of_that_size(
    most: int, sequences: int, asked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, {"mode": 0}, most)
    assert asked == {
        "compilation": {"mode": 0}, "additional": {"npucompose": "r.yaml"},
        "scheduler": {"max_num_batched_tokens": most, "max_model_len": most, "max_num_seqs": sequences,
                      "is_encoder_decoder": False},
    }  # fmt: skip


def test_what_vllm_refuses_is_one_line_that_is_not_too_long(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, {"wrong": "no\n such  size"}) == {"refused": "no such size"}
    assert answer(capsys, {"wrong": "x" * 501}) == {"refused": "x" * 500}


@pytest.mark.parametrize(
    ("plugins", "acts", "said"),
    [
        ({"builtin_platform_plugins": {"cpu": lambda: CPU}}, True, None),
        ({"builtin_platform_plugins": {"cpu": lambda: None}}, False, None),
        ({"builtin_platform_plugins": {"cuda": lambda: None}}, False, "'cpu'"),
        ({}, False, "cannot import name 'builtin_platform_plugins'"),
    ],
)
def test_a_vllm_in_which_no_recipe_can_act_has_a_warning_in_its_log(
    plugins: dict[str, Any], acts: bool, said: str | None,
    asked: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("vllm.npucompose"), "handle", logged.append)
    monkeypatch.setattr("npucompose_vllm.installed_vllm", lambda: "0.9.1")
    sys.modules["vllm.platforms"].__dict__.update(plugins)
    assert (register() is not None) == acts
    assert [record.levelname for record in logged] == ([] if said is None else ["WARNING"])
    for record in logged:
        words = record.getMessage()
        assert words.startswith(f"No recipe acts in this vLLM, 0.9.1: npucompose was read for {READ_AT} (")
        assert str(said) in words
