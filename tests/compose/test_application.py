"""What each argument asks of Hydra: one thing, with all that belongs to it, and its mistakes in our words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from npucompose.compose.sources import NAME, run_application
from npucompose.errors import ConfigError

ASKED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
LOADER, TASK = object(), object()


class Recording:
    """Hydra's place: every call is kept, and `failing` is raised."""

    failing: BaseException | None = None

    def __init__(self, task_name: str, config_loader: Any) -> None:
        assert (task_name, config_loader) == (NAME, LOADER)
        self.config_loader = config_loader

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> None:
            assert GlobalHydra.instance().is_initialized()
            ASKED.append((name, args, more))
            if self.failing is not None:
                raise self.failing

        return call


@pytest.fixture(autouse=True)
def hydra(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    for place in ("hydra._internal.hydra", "hydra.core.global_hydra"):
        monkeypatch.setattr(f"{place}.Hydra", Recording)
    monkeypatch.setattr(Recording, "failing", None)
    ASKED.clear()
    return Recording


def arguments(**given: Any) -> Any:
    names = ("run", "multirun", "cfg", "info", "shell_completion", "resolve", "help", "hydra_help", "package")
    return SimpleNamespace(**{**dict.fromkeys(names), "overrides": ["a=1", "model.config.x=2"], **given})


def asked(**given: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    loader: Any = LOADER
    ASKED.clear()
    run_application(arguments(**given), loader, "config", TASK)
    assert not GlobalHydra.instance().is_initialized()
    (one,) = ASKED
    return one


OVERRIDES = ["a=1", "model.config.x=2"]


def test_without_a_question_the_task_is_run() -> None:
    for given in ({}, {"run": True}):
        assert asked(**given) == (
            "run", (), {"config_name": "config", "task_function": TASK, "overrides": [*OVERRIDES, "hydra.mode=RUN"]},
        )  # fmt: skip
    name, _, more = asked(multirun=True)
    assert (name, more["config_name"], more["task_function"]) == ("multirun", "config", TASK)
    assert more["overrides"] == [*OVERRIDES, "hydra.mode=MULTIRUN"]


def test_each_question_is_asked_with_all_that_belongs_to_it() -> None:
    assert asked(cfg="job", package="p", resolve=True) == (
        "show_cfg", (),
        {"config_name": "config", "overrides": OVERRIDES, "cfg_type": "job", "package": "p", "resolve": True},
    )  # fmt: skip
    assert asked(info="all") == ("show_info", ("all",), {"config_name": "config", "overrides": OVERRIDES})
    assert asked(shell_completion=True) == ("shell_completion", (), {"config_name": "config", "overrides": OVERRIDES})
    for word, call in (("help", "app_help"), ("hydra_help", "hydra_help")):
        name, args, more = asked(**{word: True})
        assert (name, args, more["config_name"], more["args"].overrides) == (call, (), "config", OVERRIDES)
        assert more["args_parser"] is not None
    assert asked(help=True, resolve=True, cfg=None)[0] == "app_help"


@pytest.mark.parametrize("one", ["run", "multirun", "cfg", "info", "shell_completion"])
def test_one_thing_is_asked_at_a_time(one: str) -> None:
    other = "cfg" if one != "cfg" else "info"
    with pytest.raises(ConfigError, match="only one of --run, --multirun"):
        asked(**{one: "job", other: "all"})
    assert ASKED == []
    with pytest.raises(ConfigError, match="--resolve is for --cfg and --help"):
        asked(resolve=True)


def test_a_folder_that_cannot_be_written_is_told_and_hydra_is_cleared(hydra: type[Recording]) -> None:
    for error, words in (
        (
            OSError(13, "Permission denied", "x" * 300),
            "the folder of the run cannot be written: " + "x" * 200 + " Perm",
        ),
        (OSError("odd"), r"the folder of the run cannot be written: odd\.$"),
        (ValueError("theirs"), r"^theirs$"),
    ):
        hydra.failing = error
        with pytest.raises(ConfigError, match=words) as refused:
            asked()
        assert refused.value.__cause__ is error
        assert not GlobalHydra.instance().is_initialized()
    hydra.failing = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        asked()
    assert not GlobalHydra.instance().is_initialized()
